"""The tuned fusion: one program per token, which reads its cosines and sines once for all heads of q and of k."""

from __future__ import annotations

import triton

from fusebench import kernel

from ._triton import Cut, launch, two_tiles
from .op import Arguments


def cut(q_heads: int, k_heads: int, head_dim: int) -> Cut:
    """Exact tiles, and so many warps that a thread holds 8 channels or more of each: 24 to 40 of q and as many of k.

    Fewer than 8 channels of 16 bits would be loads of 8 bytes.
    """
    q, k = two_tiles(q_heads), two_tiles(k_heads)
    narrowest = min(tile.tail or tile.head for tile in (q, k)) * triton.next_power_of_2(head_dim)
    return Cut(q, k, num_warps=max(1, min(8, narrowest // 256)), together=True)


@kernel(
    "qknorm_across_heads_rope", "fused_triton", version=2, role="fused", language="triton", replay=True,
    note="q and k of a token in one program; cos and sin read once; two exact tiles",
)  # fmt: skip
def fused_triton(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    launch(call, cut(call.q.shape[1], call.k.shape[1], call.q.shape[2]))
