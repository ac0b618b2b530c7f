"""The fusion in CUDA C++ (`_shared/norm_tanh.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import DEFAULT_TILE, StreamTile
from .._shared.norm_tanh.cuda import Design, launch
from .op import Arguments


@kernel(
    "norm_tanh_mul_add_norm_scale", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a few warps per row and no idle lanes, row in registers, 16-byte loads, persistent grid",
)  # fmt: skip
def fused_cuda(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    return run(call)


def run(call: Arguments, design: Design = "persistent", tile: StreamTile = DEFAULT_TILE) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, y2) by one launch."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y, y2 = call.allocate()
    launch(
        plan, call.x,
        y=y, y2=y2, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, residual=call.residual, gate=call.gate,
        weight2=call.weight2, bias2=call.bias2, scale2=call.scale2, design=design, tile=tile,
    )  # fmt: skip
    return y, y2
