"""Rows streamed by bulk copies, and shared values put together (COMBINED), in CUDA C++ compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import DEFAULT_TILE, PIPELINED_TILES, STREAM_TILES, StreamTile, declined
from .fused_cuda import run
from .op import Arguments, Params


@kernel(
    "norm_tanh_mul_add_norm_scale", "fused_cuda", version=3, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="rows streamed, and what rows share put together into one factor and one term per element", choices=STREAM_TILES | PIPELINED_TILES,
)  # fmt: skip
def fused_cuda(call: Arguments, choice: StreamTile = DEFAULT_TILE) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    return run(call, "combined", choice)


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params, streams=params.streams, forms=params.shared_forms) or True
