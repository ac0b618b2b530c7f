"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import split_chain


@kernel(
    "norm_tanh_mul_add_norm_scale", "split_torch", version=1, role="split", language="torch",
    note="norm, tanh(gate), product, sum, norm, * (1 + scale2) as Z-Image writes them",
)  # fmt: skip
def split_torch(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    weight2: torch.Tensor | None,
    bias2: torch.Tensor | None,
    scale2: torch.Tensor,
    *,
    eps: float = 1e-5,
    norm: str = "rms",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    return split_chain(residual, x, gate, weight, bias, weight2, bias2, scale2, eps, norm)
