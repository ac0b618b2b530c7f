"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh_chain import norm_tanh_mul_add_chain


@kernel(
    "norm_tanh_mul_add", "split_torch", version=1, role="split", language="torch",
    note="norm, tanh(gate), product and sum as Z-Image writes them",
)  # fmt: skip
def split_torch(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float = 1e-5,
    norm: str = "rms",
) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return norm_tanh_mul_add_chain(residual, x, gate, weight, bias, eps, norm)
