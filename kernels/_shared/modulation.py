"""The broadcast forms of a modulation (scale, shift or gate), described once for every language.

A modulation of x `[B, S, D]` is one of

    scalar   [1]
    channel  [D], [1, D], [1, 1, D]
    batch    [B, D], [B, 1, D]
    token    [1|B, S, D]
    frame    [1|B, F, 1, D], S divisible by F: S/F tokens in a row share a frame's values

and is read, whatever its form, at `batch * batch_stride + (token // rows_per_group) * group_stride + channel * channel_stride`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fusebench.registry.layouts import Layout, refuse

if TYPE_CHECKING:
    import torch

Form = Literal["scalar", "channel", "batch", "token", "frame"]
FORMS: tuple[Form, ...] = ("scalar", "channel", "batch", "token", "frame")
"""From the narrowest to the widest."""

ABSENT = -1
"""Stands for the addressing of an absent modulation; device code tests its sign."""
SCALAR, CHANNEL, ROW = 0, 1, 2
"""How device code addresses a modulation: one value; one row for all of x; a row that depends on sample and token."""
assert min(SCALAR, CHANNEL, ROW) > ABSENT, "device code tells an absent modulation by its sign"


class Broadcast(NamedTuple):
    """Strides of a modulation's values, in elements; a stride of 0 means shared values."""

    batch_stride: int
    group_stride: int
    rows_per_group: int
    """Consecutive tokens of one sample that share a row of values; divides S."""
    channel_stride: int
    """1, or 0 for a scalar."""

    @property
    def addressing(self) -> int:
        """SCALAR, CHANNEL or ROW."""
        if self.channel_stride == 0:
            return SCALAR
        return CHANNEL if self.batch_stride == 0 and self.group_stride == 0 else ROW


def broadcast(op: str, name: str, values: Layout, x: Layout) -> Broadcast:
    """The strides with which `values` broadcast over x `[B, S, D]`.

    Raises:
        KernelArgumentError: `values` has no broadcast form of x, a dtype other than x's and float32, a last stride other than 1, or another
            device.
    """
    batch, tokens, hidden = x.shape
    shape, strides = values.shape, values.strides
    found: Broadcast | None = None
    if tuple(shape) == (1,):
        found = Broadcast(0, 0, max(1, tokens), 0)
    elif tuple(shape) == (hidden,):
        found = Broadcast(0, 0, max(1, tokens), 1)
    elif len(shape) in (2, 3, 4) and shape[-1] == hidden and shape[0] in (1, batch):
        batch_stride = strides[0] if shape[0] > 1 else 0
        groups = 1 if len(shape) == 2 else shape[1]
        if len(shape) == 2 or groups == 1 or (len(shape) == 3 and groups == tokens):
            found = Broadcast(batch_stride, 0 if groups == 1 else strides[1], max(1, tokens) if groups == 1 else 1, 1)
        elif len(shape) == 4 and groups and tokens % groups == 0:
            found = Broadcast(batch_stride, strides[1], max(1, tokens // groups), 1)
        if len(shape) == 4 and shape[2] != 1:
            found = None
    if found is None or values.dtype_name not in (x.dtype_name, "float32"):
        dtypes = " or ".join(dict.fromkeys((x.dtype_name, "float32")))
        accepted = (
            f"[1], [D], [1|B, D], [1|B, 1|S, D] or [1|B, F, 1, D] with F dividing S, in {dtypes}; B, S, D = {batch}, {tokens}, {hidden}"
        )
        refuse(op, name, str(values), accepted)
    if found.channel_stride and strides[-1] != 1:
        refuse(op, name, f"strides {tuple(strides)}", "a last stride of 1")
    if values.device != x.device:
        refuse(op, name, f"device {values.device}", f"{x.device}, like x")
    return found


def address(broadcast: Broadcast | None, given: torch.Tensor | None) -> tuple[int, int, int]:
    """Batch stride, group stride and rows per group for a launch; unused values when the modulation is absent."""
    return (0, 0, 1) if given is None or broadcast is None else broadcast[:3]


def addressing(broadcast: Broadcast | None, given: torch.Tensor | None) -> int:
    """SCALAR, CHANNEL or ROW; ABSENT when the modulation is absent."""
    return ABSENT if given is None or broadcast is None else broadcast.addressing


def rows_differ(broadcasts: Iterable[Broadcast], rows: int) -> bool:
    """Whether a program of `rows` consecutive rows may need different rows of one of these modulations."""
    return rows > 1 and any(one.addressing == ROW and one.rows_per_group % rows for one in broadcasts)


def form_of(values: Layout) -> tuple[Form, int]:
    """The form (the narrowest that reads the same values) and the frames of a modulation that `broadcast` accepted."""
    shape = values.shape
    if len(shape) == 1:
        return ("scalar", 1) if shape[0] == 1 else ("channel", 1)
    if len(shape) == 4 and shape[1] > 1:
        return "frame", shape[1]
    if len(shape) == 3 and shape[1] > 1:
        return "token", 1
    return ("batch", 1) if shape[0] > 1 else ("channel", 1)


def widest(*forms: tuple[Form, int]) -> tuple[Form, int]:
    """The modulation of a call that reads the most distinct values."""
    return max(forms, key=lambda form: (FORMS.index(form[0]), form[1]))


def shape_of(form: Form, *, batch: int, tokens: int, frames: int, hidden: int) -> tuple[int, ...]:
    """The shape in which models pass a modulation of this form."""
    return {
        "scalar": (1,),
        "channel": (hidden,),
        "batch": (batch, 1, hidden),
        "token": (batch, tokens, hidden),
        "frame": (batch, frames, 1, hidden),
    }[form]


def combine(function: Callable[[Any, Any], Any], x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`function(x, values)` in torch operations: x `[B, S, D]` and a modulation of any form, without expanding the values in memory."""
    if values.dim() == 4:
        batch, tokens, hidden = x.shape
        frames = values.shape[1]
        combined: torch.Tensor = function(x.unflatten(1, (frames, tokens // frames)), values)
        return combined.reshape(batch, tokens, hidden)
    result: torch.Tensor = function(x, values.unsqueeze(1) if values.dim() == 2 else values)
    return result
