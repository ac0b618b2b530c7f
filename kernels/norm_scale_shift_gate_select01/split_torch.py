"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01_chain import select01_chain


@kernel(
    "norm_scale_shift_gate_select01", "split_torch", version=1, role="split", language="torch",
    note="layer norm, both row sets spread and selected by torch.where, * (1 + scale), + shift",
)  # fmt: skip
def split_torch(
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
    return select01_chain(x, weight, bias, scale0, shift0, gate0, scale1, shift1, gate1, index, eps)
