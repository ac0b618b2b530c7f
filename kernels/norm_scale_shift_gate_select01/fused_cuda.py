"""The fusion in CUDA C++ (`_shared/select01.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01_cuda import fused
from .op import NAME


@kernel(
    "norm_scale_shift_gate_select01", "fused_cuda", version=1, role="fused", language="cuda", replay=True,
    requires=("cuda.core",),
    note="a warp or a few per row, row in registers, one row set by address, persistent grid",
)  # fmt: skip
def fused_cuda(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale0: torch.Tensor,
    shift0: torch.Tensor,
    gate0: torch.Tensor,
    scale1: torch.Tensor,
    shift1: torch.Tensor,
    gate1: torch.Tensor,
    index: torch.Tensor,
    *,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    rows = (scale0, shift0, gate0, scale1, shift1, gate1)
    return fused(NAME, x, weight, bias, rows, index, eps)  # type: ignore[return-value]
