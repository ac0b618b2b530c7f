"""The fusion in CUDA C++ (`_shared/norm_tanh.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import DEFAULT_TILE, StreamTile
from .._shared.norm_tanh.cuda import Design, launch
from .op import Arguments


@kernel(
    "norm_tanh_mul_add", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a few warps per row and no idle lanes, row in registers, 16-byte loads, persistent grid",
)  # fmt: skip
def fused_cuda(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return run(call)


def run(call: Arguments, design: Design = "persistent", tile: StreamTile = DEFAULT_TILE) -> torch.Tensor:
    """y by one launch."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y = call.allocate()
    launch(
        plan, call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, residual=call.residual, gate=call.gate,
        design=design, tile=tile,
    )  # fmt: skip
    return y
