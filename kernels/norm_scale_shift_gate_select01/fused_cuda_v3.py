"""Rows streamed by bulk copies, and shared values put together (COMBINED), in CUDA C++ compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_stream import DEFAULT_TILE, STREAM_TILES, StreamTile, declined
from .._shared.select01.cuda import fused
from .op import Arguments, Params


@kernel(
    "norm_scale_shift_gate_select01", "fused_cuda", version=3, role="fused", language="cuda", replay=True,
    requires=("cuda.core",),
    note="rows streamed, and what rows share put together into one factor and one term per element", choices=STREAM_TILES,
)  # fmt: skip
def fused_cuda(call: Arguments, choice: StreamTile = DEFAULT_TILE) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    return fused(call, "combined", choice)


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params, streams=1, forms=()) or True
