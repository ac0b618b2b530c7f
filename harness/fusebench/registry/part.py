"""A part of an op, for a kernel that computes less than the whole: a library's norm, while the op also modulates.

Such a kernel is checked against the reference of its part and timed on it. Its time is shown with the part's name and is never compared
with the time of a kernel that computes the whole op.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import KernelDeclarationError
from .op import Op

if TYPE_CHECKING:
    import torch

    from .kernel import Kernel


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an op, shared by all kernels that compute it: `@kernel(..., covers=NORM)`.

    The op lists its parts (`Op.parts`).  A kernel's part is found there by its text, so no kernel file can bring its own reference.
    """

    covers: str
    """What is computed and what is left out, in words: `norm only: no scale, no shift`."""
    reference: Callable[[Any, Mapping[str, Any]], dict[str, torch.Tensor]]
    """`reference(params, arguments)`: the part's outputs in float64 by name, as `Op.reference`."""
    split: Callable[..., Any]
    """The part in separate torch operations, each rounding to the activations' dtype: takes the op's arguments by name and returns one
    tensor per output.  The `close` contract is relative to its error."""
    minimum_bytes: Callable[[Any], int]
    """`minimum_bytes(params)`: bytes that any implementation of the part must move."""
    bytes_written: Callable[[Any], int] | None = None
    """`bytes_written(params)`: the part of these that is written; half of them unless given."""
    outputs: tuple[str, ...] = ()
    """Names of the part's outputs among the op's; empty for all of them."""

    def __post_init__(self) -> None:
        if not self.covers.strip():
            raise KernelDeclarationError("a Part needs a text in `covers` that says what is computed and what is left out")

    def op_of(self, op: Op) -> Op:
        """`op` reduced to this part: the same inputs and arguments, the part's outputs, reference and byte count.

        Raises:
            KernelDeclarationError: the part names an output that `op` does not have.
        """
        if unknown := [name for name in self.outputs if name not in op.outputs]:
            known = ", ".join(op.outputs)
            raise KernelDeclarationError(f"the part {self.covers!r} names outputs {', '.join(unknown)}; op {op.name} has {known}")
        reference, minimum_bytes = self.reference, self.minimum_bytes
        bytes_written = self.bytes_written or (lambda params: minimum_bytes(params) // 2)
        changed: dict[str, Any] = {
            "reference": lambda _, params, arguments: reference(params, arguments),
            "minimum_bytes": lambda _, params: minimum_bytes(params),
            "bytes_written": lambda _, params: bytes_written(params),
        }
        if self.outputs:
            outputs = self.outputs
            changed |= {
                "outputs": outputs,
                "outputs_of": lambda _, params: tuple(name for name in op.outputs_of(params) if name in outputs),
            }
        reduced: Op = type(f"{type(op).__name__}Part", (type(op),), changed)()
        return reduced


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
