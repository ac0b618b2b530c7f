"""The fusion of version 3 for 16-bit activations, with a tanh of fewer instructions."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh.launch import launch
from .fused_triton_v3 import tile
from .op import Arguments, Params


@kernel(
    "norm_tanh_mul_add_norm_scale", "fused_triton", version=4, role="fused", language="triton", replay=True,
    note="as version 3, with a tanh of fewer instructions that is as exact as 16 bits need",
)  # fmt: skip
def fused_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y, y2 = call.allocate()
    launch(
        plan, tile(plan.hidden, plan.rows), call.x,
        y=y, y2=y2, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, residual=call.residual, gate=call.gate,
        weight2=call.weight2, bias2=call.bias2, scale2=call.scale2, any_rows=True, short=call.x.element_size() == 2,
    )  # fmt: skip
    return y, y2


@fused_triton.supports
def _(params: Params) -> bool | str:
    return params.dtype != "float32" or "float32 activations show the errors of a tanh of few instructions; version 3 takes them"
