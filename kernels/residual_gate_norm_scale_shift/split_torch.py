"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import split_chain


@kernel(
    "residual_gate_norm_scale_shift", "split_torch", version=1, role="split", language="torch",
    note="residual + gate * x, norm, * (1 + scale), + shift as models write it",
)  # fmt: skip
def split_torch(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    eps: float = 1e-6,
    norm: str = "layer",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    return split_chain(residual, x, gate, weight, bias, scale, shift, eps, norm)
