"""The split chain in torch operations, shared by `split_torch` (eager) and `compiled` (torch.compile of the same code)."""

from __future__ import annotations

import torch

from .._shared.norm_tanh_chain import norm_scale_chain, norm_tanh_mul_add_chain


def split_chain(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    weight2: torch.Tensor | None,
    bias2: torch.Tensor | None,
    scale2: torch.Tensor,
    eps: float,
    norm: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    y = norm_tanh_mul_add_chain(residual, x, gate, weight, bias, eps, norm)
    return y, norm_scale_chain(y, weight2, bias2, scale2, eps, norm)
