"""Refuses arguments that no select01 kernel may take, and says how the accepted ones lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .layout import Layout, layout_of, optional_layout, refuse, remembered
from .norm_arguments import check_norm, check_rows
from .select01_params import INDEX_ITEM_SIZES, ROWS

if TYPE_CHECKING:
    import torch


class Plan(NamedTuple):
    """A checked call on x `[B, L, C]`; strides in elements."""

    batch: int
    tokens: int
    hidden: int
    row_strides: tuple[int, ...]
    """From sample to sample, of each of `select01_params.ROWS`."""
    index_strides: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


def plan_call(
    op: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    residual_gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rows: Sequence[torch.Tensor],
    index: torch.Tensor,
    eps: float,
) -> Plan:
    """`plan` of a call's tensors."""
    return plan(
        op, layout_of(x), optional_layout(residual), optional_layout(residual_gate), optional_layout(weight), optional_layout(bias),
        tuple(map(layout_of, rows)), layout_of(index), eps,
    )  # fmt: skip


@remembered
def plan(
    op: str,
    x: Layout,
    residual: Layout | None,
    residual_gate: Layout | None,
    weight: Layout | None,
    bias: Layout | None,
    rows: tuple[Layout, ...],
    index: Layout,
    eps: float,
) -> Plan:
    """Check one call of `op`.

    Args:
        residual, residual_gate: None for the op without them.
        rows: layouts of `select01_params.ROWS`, in that order.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    check_rows(op, "x", x)
    for name, tensor in (("residual", residual), ("residual_gate", residual_gate)):
        if tensor is None:
            continue
        if tensor.shape != x.shape or tensor.dtype != x.dtype:
            refuse(op, name, str(tensor), f"{list(x.shape)} in {x.dtype}, like x")
        check_rows(op, name, tensor)
        _require_device(op, name, tensor, x)
    check_norm(op, x, weight, bias, eps, "layer")
    batch, tokens, hidden = x.shape
    for name, row in zip(ROWS, rows, strict=True):
        _check_row(op, name, row, rows[0], x)
    if tuple(index.shape) != (batch, tokens) or index.dtype_name not in INDEX_ITEM_SIZES:
        refuse(op, "index", str(index), f"[{batch}, {tokens}] in torch.int32, torch.int64 or torch.bool")
    _require_device(op, "index", index, x)
    return Plan(batch, tokens, hidden, tuple(row.strides[0] for row in rows), tuple(index.strides))


def _check_row(op: str, name: str, row: Layout, first: Layout, x: Layout) -> None:
    shape = (x.shape[0], x.shape[2])
    if tuple(row.shape) != shape or row.dtype_name not in (x.dtype_name, "float32"):
        dtypes = " or ".join(dict.fromkeys((str(x.dtype), "torch.float32")))
        refuse(op, name, str(row), f"{list(shape)} in {dtypes}")
    if row.dtype != first.dtype:
        refuse(op, name, str(row), f"{first.dtype}, like {ROWS[0]}: the six rows share one dtype")
    if row.strides[1] != 1:
        refuse(op, name, f"strides {tuple(row.strides)}", "a last stride of 1")
    _require_device(op, name, row, x)


def _require_device(op: str, name: str, tensor: Layout, x: Layout) -> None:
    if tensor.device != x.device:
        refuse(op, name, f"device {tensor.device}", f"{x.device}, like x")
