"""The split chain in torch operations, shared by `split_torch` (eager) and `compiled` (torch.compile of the same code)."""

from __future__ import annotations

import torch

from .._shared.norm_chain import norm_scale_shift_chain, residual_gate_chain


def split_chain(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
    norm: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]` in x's dtype."""
    v = residual_gate_chain(residual, x, gate)
    return norm_scale_shift_chain(v, weight, bias, scale, shift, eps, norm), v
