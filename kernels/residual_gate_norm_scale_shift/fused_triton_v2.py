"""The tuned fusion: several short rows per program, warps by D, and long rows as two tiles without idle lanes."""

from __future__ import annotations

import torch
import triton

from fusebench import kernel

from .._shared.modulated_norm_triton import UNCONTRACTED, launch
from .._shared.row_tiles import WARPS, WIDE, RowTile, two_tiles, with_warps
from .op import Arguments


def tile(hidden: int) -> RowTile:
    """32 to 64 elements per thread: `two_tiles`, or from WIDE on one masked block on four warps."""
    cut = two_tiles(hidden)
    block = triton.next_power_of_2(hidden)
    return RowTile(1, block, 0, num_warps=4) if cut.tail and block >= WIDE else cut


@kernel(
    "residual_gate_norm_scale_shift", "fused_triton", version=2, role="fused", language="triton", replay=True,
    note="rows per program and warps by D, no idle lanes", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y, v = call.allocate()
    launch(
        plan, with_warps(tile(plan.hidden), choice), UNCONTRACTED, call.x,
        y=y, v=v, residual=call.residual, gate=call.gate, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps,
        scale=call.scale, shift=call.shift,
    )  # fmt: skip
    return y, v
