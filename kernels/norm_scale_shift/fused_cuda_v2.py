"""Rows streamed through shared memory by bulk copies, in CUDA C++ compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.modulated_norm_cuda import launch
from .op import Arguments


@kernel(
    "norm_scale_shift", "fused_cuda", version=2, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="rows streamed through shared memory by bulk copies, shared values kept in registers",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y = call.allocate()
    launch(
        plan, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, scale=call.scale, shift=call.shift, design="streamed",
    )  # fmt: skip
    return y
