"""The simplest correct fusion: one row per program, the whole row in one block."""

from __future__ import annotations

import torch
import triton

from fusebench import kernel

from .._shared.modulated_norm_triton import UNCONTRACTED, launch
from .._shared.row_tiles import RowTile
from .op import Arguments


def tile(hidden: int) -> RowTile:
    """One row per program, in one block that is masked where D is no power of two."""
    block = triton.next_power_of_2(hidden)
    return RowTile(1, block, 0, num_warps=8 if block > 4096 else 4)


@kernel(
    "norm_scale_shift", "fused_triton", version=1, role="fused", language="triton", replay=True,
    note="one row per program, in one masked block",
)  # fmt: skip
def fused_triton(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y = call.allocate()
    launch(
        plan, tile(plan.hidden), UNCONTRACTED, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, scale=call.scale, shift=call.shift,
    )  # fmt: skip
    return y
