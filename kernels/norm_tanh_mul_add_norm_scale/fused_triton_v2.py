"""The tuned fusion: two long rows per program share the tanh of their gate, several short ones; warps by D."""

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
    "norm_tanh_mul_add_norm_scale", "fused_triton", version=2, role="fused", language="triton", replay=True,
    note="two rows share the tanh of their gate, warps by D",
)  # fmt: skip
def fused_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y, y2 = call.allocate()
    launch(
        plan, tile(plan.hidden, plan.rows), call.x,
        y=y, y2=y2, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, residual=call.residual, gate=call.gate,
        weight2=call.weight2, bias2=call.bias2, scale2=call.scale2,
    )  # fmt: skip
    return y, y2
