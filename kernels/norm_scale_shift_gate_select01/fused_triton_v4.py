"""For few rows: a program per row, whose first load comes soon after its start; see `_shared/few_rows_triton.py`."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.row_tiles import WARPS, not_few_rows
from .._shared.select01.few_rows import fused
from .op import Arguments, Params


@kernel(
    "norm_scale_shift_gate_select01", "fused_triton", version=4, role="fused", language="triton", replay=True,
    note="for few rows: asks for every operand at once, and soon after its start", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    return fused(call, choice)


@fused_triton.supports
def _(params: Params) -> bool | str:
    return not_few_rows(params.rows, params.hidden, unaligned=params.unaligned) or True
