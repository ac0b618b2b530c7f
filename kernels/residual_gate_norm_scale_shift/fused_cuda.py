"""The fusion in CUDA C++ (`_shared/modulated_norm.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import DEFAULT_TILE, StreamTile
from .._shared.modulated_norm_cuda import Design, launch
from .op import Arguments


@kernel(
    "residual_gate_norm_scale_shift", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a warp or a few per row, row in registers, 16-byte loads, persistent grid",
)  # fmt: skip
def fused_cuda(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    return run(call)


def run(call: Arguments, design: Design = "persistent", tile: StreamTile = DEFAULT_TILE) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, v) by one launch."""
    plan = call.checked()
    call.require_gpu(interpreted=False)
    y, v = call.allocate()
    launch(
        plan, call.x,
        y=y, v=v, residual=call.residual, gate=call.gate, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps,
        scale=call.scale, shift=call.shift, design=design, tile=tile,
    )  # fmt: skip
    return y, v
