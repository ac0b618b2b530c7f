"""A block for every row, in CUDA C++ compiled by NVRTC for each shape's constants: the hardware deals out the rows."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_cuda import launch
from .op import Arguments


@kernel(
    "residual_gate_norm_scale_shift", "fused_cuda", version=4, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a block for every row, which the hardware deals out; plain loads",
)  # fmt: skip
def fused_cuda(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y, v = call.allocate()
    launch(
        plan, call.x,
        y=y, v=v, residual=call.residual, gate=call.gate, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps,
        scale=call.scale, shift=call.shift, design="alone",
    )  # fmt: skip
    return y, v
