"""The split chain in torch operations, shared by `split_torch` (eager) and `compiled` (torch.compile of the same code)."""

from __future__ import annotations

import torch

from .._shared.norm_chain import residual_gate_chain
from .._shared.select01_chain import select01_chain


def split_chain(
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
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), each `[B, L, C]` in x's dtype.  The chain can but norm the rounded v: that is all that it has."""
    v = residual_gate_chain(residual, x, residual_gate)
    y, gate_out = select01_chain(v, weight, bias, scale0, shift0, gate0, scale1, shift1, gate1, index, eps)
    return y, v, gate_out
