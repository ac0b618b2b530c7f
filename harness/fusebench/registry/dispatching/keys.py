"""The sizes and kinds of a case by which dispatch tables compare it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from ...schema.dispatch import DispatchKey


def key_of(
    params: msgspec.Struct,
    token_fields: Sequence[str],
    sized: Sequence[str] | None,
    alike: Sequence[str] | None,
    traits: Sequence[str] = (),
) -> DispatchKey | None:
    """The part of `params` that decides which kernel is fastest, for dispatch tables.

    Of a traced call's symbolic sizes the example's are taken, without a guard; None if one has none.

    Args:
        token_fields, sized, alike, traits: the op's `token_fields`,
            `dispatch_sizes`, `dispatch_kinds` and `dispatch_traits`.
    """
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    tokens = [name for name in token_fields if name in fields]
    found: dict[str, Any]
    if sized is None:
        found = {"rows": math.prod(fields[name] for name in tokens)} if tokens else {}
        found |= {name: value for name, value in fields.items() if name not in tokens and _is_size(value)}
    else:
        found = {name: getattr(params, name) for name in sized}
    sizes = {name: _known_size(value) for name, value in found.items()}
    if alike is None:
        kinds = {name: value for name, value in fields.items() if not _is_size(value) and not isinstance(value, float)}
    else:
        kinds = {name: getattr(params, name) for name in alike}
    plain = {name: value if value is None or isinstance(value, bool | int | str) else str(value) for name, value in kinds.items()}
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(known) != len(sizes):
        return None
    return DispatchKey(sizes=known, kinds=plain, traits=tuple(name for name in traits if getattr(params, name)))


def _is_size(value: Any) -> bool:
    """Whether it is a whole number, also a symbolic one of a traced call."""
    return (isinstance(value, int) and not isinstance(value, bool)) or type(value).__name__ == "SymInt"


def _known_size(value: Any) -> int | None:
    """The size itself; of a symbolic one the example's, if the trace has an example."""
    if isinstance(value, int):
        return value
    return int(value.node.hint) if value.node.has_hint() else None
