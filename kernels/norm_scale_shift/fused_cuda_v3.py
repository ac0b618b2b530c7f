"""Rows streamed by bulk copies, and shared values put together (COMBINED), in CUDA C++ compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import declined
from .._shared.modulated_norm_cuda import launch
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "fused_cuda", version=3, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="rows streamed, and what rows share put together into one factor and one term per element",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y = call.allocate()
    launch(
        plan, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, scale=call.scale, shift=call.shift, design="combined",
    )  # fmt: skip
    return y


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params, streams=1, forms=(params.modulation,)) or True
