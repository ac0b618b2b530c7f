"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh.chain import norm_scale_chain, norm_tanh_mul_add_chain
from .op import Arguments


@kernel(
    "norm_tanh_mul_add_norm_scale", "split_torch", version=1, role="split", language="torch",
    note="norm, tanh(gate), product, sum, norm, * (1 + scale2) as Z-Image writes them",
)  # fmt: skip
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`."""
    y = norm_tanh_mul_add_chain(call.residual, call.x, call.gate, call.weight, call.bias, call.eps, call.norm)
    return y, norm_scale_chain(y, call.weight2, call.bias2, call.scale2, call.eps, call.norm)
