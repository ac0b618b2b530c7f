"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_chain import norm_scale_shift_chain, residual_gate_chain
from .op import Arguments


@kernel(
    "residual_gate_norm_scale_shift", "split_torch", version=1, role="split", language="torch",
    note="residual + gate * x, norm, * (1 + scale), + shift as models write it",
)  # fmt: skip
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    v = residual_gate_chain(call.residual, call.x, call.gate)
    return norm_scale_shift_chain(v, call.weight, call.bias, call.scale, call.shift, call.eps, call.norm), v
