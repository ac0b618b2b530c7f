"""A part of an op, for a kernel that computes less than the whole: a library's norm, while the op also modulates.

Such a kernel is checked against the reference of its part and timed on it. Its time is shown with the part's name and is never compared
with the time of a kernel that computes the whole op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import KernelDeclarationError
from .op import Op

if TYPE_CHECKING:
    import torch


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
