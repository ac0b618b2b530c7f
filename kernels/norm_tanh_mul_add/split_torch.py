"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh.chain import norm_tanh_mul_add_chain
from .op import Arguments


@kernel(
    "norm_tanh_mul_add", "split_torch", version=1, role="split", language="torch",
    note="norm, tanh(gate), product and sum as Z-Image writes them",
)  # fmt: skip
def split_torch(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return norm_tanh_mul_add_chain(call.residual, call.x, call.gate, call.weight, call.bias, call.eps, call.norm)
