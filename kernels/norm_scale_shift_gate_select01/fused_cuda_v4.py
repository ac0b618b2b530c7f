"""Rows streamed by teams of warps beside tables of what they share (`_shared/row_tables.cuh`), compiled by NVRTC for each shape.

No GPU has run it yet: `dispatch` takes it only where a table holds a time of it.
"""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.cuda_tables import declined
from .._shared.select01.cuda import fused
from .op import Arguments, Params


@kernel(
    "norm_scale_shift_gate_select01", "fused_cuda", version=4, role="fused", language="cuda", replay=True,
    requires=("cuda.core",),
    note="teams of warps stream rows in memory's order beside tables of both row sets in shared memory",
)  # fmt: skip
def fused_cuda(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    return fused(call, tabled=True)


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return declined(params, streams=1, forms=(), kinds=2, sets=2) or True
