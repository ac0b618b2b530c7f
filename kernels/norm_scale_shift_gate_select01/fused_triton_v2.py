"""The lean selection: the token's index picks an address, and one row set is loaded."""

from __future__ import annotations

import torch
import triton

from fusebench import kernel

from .._shared.row_tiles import WIDE, RowTile, two_tiles
from .._shared.select01.launch import fused
from .op import Arguments


def tile(hidden: int) -> RowTile:
    """32 to 64 elements per thread: `two_tiles`, or from WIDE on one masked block on four warps."""
    cut = two_tiles(hidden)
    block = triton.next_power_of_2(hidden)
    return RowTile(1, block, 0, num_warps=4) if cut.tail and block >= WIDE else cut


@kernel(
    "norm_scale_shift_gate_select01", "fused_triton", version=2, role="fused", language="triton", replay=True,
    note="selects the address, loads one row set",
)  # fmt: skip
def fused_triton(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    return fused(call, tile, both=False)
