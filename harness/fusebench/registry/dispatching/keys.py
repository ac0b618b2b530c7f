"""The sizes and kinds of a case by which dispatch tables compare it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...schema.dispatch import DispatchKey

if TYPE_CHECKING:
    from ..op import Op


def key_of(op: Op, params: Any) -> DispatchKey | None:
    """The part of `params` that decides which kernel is fastest, for dispatch tables.

    Of a traced call's symbolic sizes the example's are taken, without a guard; None if one has none.
    """
    fields = {name: getattr(params, name) for name in op.Params.__struct_fields__}
    tokens = [name for name in op.token_fields if name in fields]
    found: dict[str, Any]
    if op.dispatch_sizes is None:
        found = {"rows": math.prod(fields[name] for name in tokens)} if tokens else {}
        found |= {name: value for name, value in fields.items() if name not in tokens and _is_size(value)}
    else:
        found = {name: getattr(params, name) for name in op.dispatch_sizes}
    sizes = {name: _known_size(value) for name, value in found.items()}
    if op.dispatch_kinds is None:
        kinds = {name: value for name, value in fields.items() if not _is_size(value) and not isinstance(value, float)}
    else:
        kinds = {name: getattr(params, name) for name in op.dispatch_kinds}
    plain = {name: value if value is None or isinstance(value, bool | int | str) else str(value) for name, value in kinds.items()}
    known = {name: size for name, size in sizes.items() if size is not None}
    return DispatchKey(sizes=known, kinds=plain) if len(known) == len(sizes) else None


def _is_size(value: Any) -> bool:
    """Whether it is a whole number, also a symbolic one of a traced call."""
    return (isinstance(value, int) and not isinstance(value, bool)) or type(value).__name__ == "SymInt"


def _known_size(value: Any) -> int | None:
    """The size itself; of a symbolic one the example's, if the trace has an example."""
    if isinstance(value, int):
        return value
    return int(value.node.hint) if value.node.has_hint() else None
