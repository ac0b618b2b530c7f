"""For few rows: every operand is asked for before the reduction and the first store, so that a row waits for the memory once."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_triton import UNCONTRACTED, launch
from .._shared.row_tiles import WARPS, more_than_one_wave, one_row, with_warps
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "fused_triton", version=3, role="fused", language="triton", replay=True,
    note="for few rows: asks for every operand at once", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y = call.allocate()
    launch(
        plan, with_warps(one_row(plan.hidden), choice), UNCONTRACTED, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, scale=call.scale, shift=call.shift, early=True,
    )  # fmt: skip
    return y


@fused_triton.supports
def _(params: Params) -> bool | str:
    return more_than_one_wave(params.rows) or True
