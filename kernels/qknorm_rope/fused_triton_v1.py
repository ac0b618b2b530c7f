"""The simplest correct fusion: one program and one warp per (token, head)."""

from __future__ import annotations

from fusebench import kernel

from ._triton import UNCONTRACTED, Tile, launch
from .op import Arguments

TILE = Tile(block_heads=1, num_warps=1)


@kernel("qknorm_rope", "fused_triton", version=1, role="fused", language="triton", replay=True, note="one program per (token, head)")
def fused_triton(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    launch(call, TILE, UNCONTRACTED)
