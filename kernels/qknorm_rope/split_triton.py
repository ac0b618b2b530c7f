"""The split yardstick: one well-tuned QK-norm launch, then one well-tuned RoPE launch, each in place."""

from __future__ import annotations

import triton

from fusebench import kernel

from ._triton import UNCONTRACTED, Tile, launch
from .op import Arguments


def tile(head_dim: int) -> Tile:
    """Tile of each launch of the split chain: the one that made the pair fastest (51.7 us where eight heads on four warps take 54.6)."""
    width = triton.next_power_of_2(head_dim)
    return Tile(block_heads=16, num_warps=max(1, 16 * width // 512))


@kernel("qknorm_rope", "split_triton", version=1, role="split", language="triton", note="QK norm, then RoPE: two launches, in place")
def split_triton(call: Arguments) -> None:
    """Overwrites q and k.  The norm's result is rounded to their dtype between the launches, whatever `round_norm` says."""
    call.checked()
    cut = tile(call.q.shape[2])
    launch(call, cut, UNCONTRACTED, rope=False)
    launch(call, cut, UNCONTRACTED, norm=False)
