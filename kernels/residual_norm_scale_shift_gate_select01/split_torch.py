"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_chain import residual_gate_chain
from .._shared.select01.chain import select01_chain
from .op import Arguments


@kernel(
    "residual_norm_scale_shift_gate_select01", "split_torch", version=1, role="split", language="torch",
    note="residual + residual_gate * x, layer norm, both row sets spread and selected by torch.where, * (1 + scale), + shift",
)  # fmt: skip
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), each `[B, L, C]`."""
    v = residual_gate_chain(call.residual, call.x, call.residual_gate)
    y, gate_out = select01_chain(v, call)
    return y, v, gate_out
