"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.select01.chain import select01_chain
from .op import Arguments


@kernel(
    "norm_scale_shift_gate_select01", "split_torch", version=1, role="split", language="torch",
    note="layer norm, both row sets spread and selected by torch.where, * (1 + scale), + shift",
)  # fmt: skip
def split_torch(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    return select01_chain(call.x, call)
