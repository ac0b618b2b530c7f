"""For few rows: every operand is asked for before the reduction and the first store, so that a row waits for the memory once."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_triton import UNCONTRACTED, launch
from .._shared.row_tiles import WARPS, more_than_one_wave, one_row, with_warps
from .op import Arguments, Params


@kernel(
    "residual_gate_norm_scale_shift", "fused_triton", version=3, role="fused", language="triton", replay=True,
    note="for few rows: asks for every operand at once", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y, v = call.allocate()
    launch(
        plan, with_warps(one_row(plan.hidden), choice), UNCONTRACTED, call.x,
        y=y, v=v, residual=call.residual, gate=call.gate, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps,
        scale=call.scale, shift=call.shift, early=True,
    )  # fmt: skip
    return y, v


@fused_triton.supports
def _(params: Params) -> bool | str:
    return more_than_one_wave(params.rows) or True
