"""The parts that an op lists, which a kernel of one of them is judged by: a kernel's file brings no reference of its own."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING

from ..errors import KernelDeclarationError
from .part import Part

if TYPE_CHECKING:
    from .kernel import Kernel
    from .op import Op


def declared_parts(op: Op) -> dict[str, Part]:
    """The parts that `op` lists, by their text.

    Raises:
        KernelDeclarationError: an entry of `Op.parts` names no Part, or two parts have one text.
    """
    package = type(op).__module__.rpartition(".")[0]
    found: dict[str, Part] = {}
    for entry in op.parts:
        module, _, name = entry.partition(":")
        part = getattr(importlib.import_module(module, package), name, None)
        if not isinstance(part, Part):
            raise KernelDeclarationError(f"op {op.name} lists the part {entry!r}; expected module:NAME of a Part, relative to op.py")
        if part.covers in found:
            raise KernelDeclarationError(f"op {op.name} lists two parts with the text {part.covers!r}")
        found[part.covers] = part
    return found


def refused_part(op: Op, kernel: Kernel) -> str:
    """Replace the kernel's part by the op's own of the same text.  Why that fails; empty if it does not, or if there is no part."""
    if kernel.part is None:
        return ""
    try:
        known = declared_parts(op)
    except Exception as error:  # noqa: BLE001 - a part's module may raise anything, and concerns the kernels of parts alone
        return f"kernel {kernel.id} covers a part of its op, and the op's parts cannot be read: {type(error).__name__}: {error}"
    if kernel.covers not in known:
        listed = "; ".join(repr(text) for text in known) or "none"
        return (
            f"kernel {kernel.id} covers {kernel.covers!r}, which op {op.name} does not list; its parts: {listed}. The reference of a part "
            "belongs to the op: put the Part into a module of the op's folder and name it in `parts` of op.py"
        )
    kernel.part = known[kernel.covers]
    return ""


def judged_by(kernel: Kernel, base: Op | None) -> Kernel:
    """`kernel` with the part's reference of `base`, the base revision's op; as it is where there is no part, or base has none like it."""
    part = declared_parts(base).get(kernel.covers) if kernel.part is not None and base is not None else None
    if part is None:
        return kernel
    judged = copy.copy(kernel)
    judged.part = part
    return judged
