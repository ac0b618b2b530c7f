"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_chain import norm_scale_shift_chain
from .op import Arguments


@kernel(
    "norm_scale_shift", "split_torch", version=1, role="split", language="torch", note="norm, * (1 + scale), + shift as models write it"
)
def split_torch(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    return norm_scale_shift_chain(call.x, call.weight, call.bias, call.scale, call.shift, call.eps, call.norm)
