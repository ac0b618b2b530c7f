"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import split_chain


@kernel(
    "residual_norm_scale_shift_gate_select01", "split_torch", version=1, role="split", language="torch",
    note="residual + residual_gate * x, layer norm, both row sets spread and selected by torch.where, * (1 + scale), + shift",
)  # fmt: skip
def split_torch(
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
    return split_chain(residual, x, residual_gate, weight, bias, scale0, shift0, gate0, scale1, shift1, gate1, index, eps)
