"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_chain import norm_scale_shift_chain


@kernel(
    "norm_scale_shift", "split_torch", version=1, role="split", language="torch", note="norm, * (1 + scale), + shift as models write it"
)
def split_torch(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    eps: float = 1e-6,
    norm: str = "layer",
) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return norm_scale_shift_chain(x, weight, bias, scale, shift, eps, norm)
