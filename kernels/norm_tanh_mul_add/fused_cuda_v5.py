"""A block for a few neighbouring rows, in CUDA C++ compiled by NVRTC for each shape's constants: what they share is made once."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import unshared
from .fused_cuda import run
from .op import Arguments, Params


@kernel(
    "norm_tanh_mul_add", "fused_cuda", version=5, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a block for two or three neighbouring rows, which share the tanh of the gate and what else it loads for them",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return run(call, "neighbours")


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return unshared(params, (params.modulation,)) or True
