"""The tuned fusion of version 2, not compiled apart for counts of rows that 16 divides."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh.launch import launch
from .._shared.norm_tanh.tiles import MANY_ROWS
from .._shared.row_tiles import WIDE, RowTile, tuned
from .op import Arguments


def tile(hidden: int, rows: int) -> RowTile:
    """`row_tiles.tuned`, with two rows per program where rows are long, up to 4096, and the launch has many of them: they share a tanh."""
    one_row = tuned(hidden)
    if one_row.rows > 1 or rows < MANY_ROWS or one_row.head + one_row.tail > WIDE:
        return one_row
    return one_row._replace(rows=2, num_warps=2 * one_row.num_warps)


@kernel(
    "norm_tanh_mul_add", "fused_triton", version=3, role="fused", language="triton", replay=True,
    note="as version 2, not compiled apart for counts of rows that 16 divides",
)  # fmt: skip
def fused_triton(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y = call.allocate()
    launch(
        plan, tile(plan.hidden, plan.rows), call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, residual=call.residual, gate=call.gate, any_rows=True,
    )  # fmt: skip
    return y
