"""The lean selection: the token's index picks an address, and one row set is loaded."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01_triton import fused
from .op import NAME


@kernel(
    "residual_norm_scale_shift_gate_select01", "fused_triton", version=2, role="fused", language="triton", replay=True,
    note="selects the address, loads one row set",
)  # fmt: skip
def fused_triton(
    residual: torch.Tensor,
    x: torch.Tensor,
    residual_gate: torch.Tensor,
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), each `[B, L, C]`."""
    rows = (scale0, shift0, gate0, scale1, shift1, gate1)
    return fused(NAME, x, weight, bias, rows, index, eps, both=False, residual=residual, residual_gate=residual_gate)  # type: ignore[return-value]
