"""For few rows: every operand is asked for before the reduction and the first store, so that a row waits for the memory once."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.row_tiles import WARPS, RowTile, more_than_few, one_row, with_warps
from .._shared.select01.launch import fused
from .op import Arguments, Params


@kernel(
    "residual_norm_scale_shift_gate_select01", "fused_triton", version=3, role="fused", language="triton", replay=True,
    note="for few rows: asks for every operand at once", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), each `[B, L, C]`."""

    def tile(hidden: int) -> RowTile:
        return with_warps(one_row(hidden), choice)

    return fused(call, tile, both=True, early=True)


@fused_triton.supports
def _(params: Params) -> bool | str:
    return more_than_few(params.rows) or True
