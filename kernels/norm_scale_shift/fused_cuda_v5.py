"""A block for a few neighbouring rows, in CUDA C++ compiled by NVRTC for each shape's constants: what they share is loaded once."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import unshared
from .._shared.modulated_norm_cuda import launch
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "fused_cuda", version=5, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a block for three neighbouring rows, which share what it loads for them",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y = call.allocate()
    launch(
        plan, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, scale=call.scale, shift=call.shift, design="neighbours",
    )  # fmt: skip
    return y


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return unshared(params, (params.modulation,)) or True
