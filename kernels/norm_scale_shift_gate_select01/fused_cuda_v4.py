"""A block for every row, in CUDA C++ compiled by NVRTC for each shape's constants: the hardware deals out the rows."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01.cuda import fused
from .op import Arguments


@kernel(
    "norm_scale_shift_gate_select01", "fused_cuda", version=4, role="fused", language="cuda", replay=True,
    requires=("cuda.core",),
    note="a block for every row, which the hardware deals out; plain loads",
)  # fmt: skip
def fused_cuda(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    return fused(call, "alone")
