"""The tuned fusion: a program per block of heads of one token, which share its cosines and sines."""

from __future__ import annotations

import triton

from fusebench import Bitwise, Close, kernel
from fusebench.schema import Contract

from ._triton import UNCONTRACTED, Tile, launch
from .op import Arguments, Params

AS_DECLARED = Tile(1, 1)
"""Factors of heads and warps."""


def tile(head_dim: int, choice: Tile = AS_DECLARED) -> Tile:
    """Tile of the fused launch over `[N, heads, D]`: 32 elements a thread, eight heads of 128 to a warp.

    On an H200, 4096 tokens of 24 heads of 128 in bfloat16: 61.2 us with two heads to a warp, 31.9 with four, 24.9 with eight;
    with more warps to the program the cosines go through shared memory and a barrier (eight heads: 25.9 us on two, 26.3 on four).

    Args:
        choice: factors of heads and warps, to be measured by `fusebench tune`.
    """
    width = triton.next_power_of_2(head_dim)
    block_heads = 16 if width <= 64 else 8
    return Tile(choice.block_heads * block_heads, num_warps=choice.num_warps * max(1, block_heads * width // 1024))


@kernel(
    "qknorm_rope",
    "fused_triton",
    version=2,
    role="fused",
    language="triton",
    replay=True,
    note="blocks of heads share cos and sin; tuned tile",
    choices={"two_warps": Tile(1, 2), "more_heads": Tile(2, 1), "more_heads_two_warps": Tile(2, 2)},
)
def fused_triton(call: Arguments, choice: Tile = AS_DECLARED) -> None:
    """Overwrites q and k."""
    call.checked()
    launch(call, tile(call.q.shape[2], choice), UNCONTRACTED)


@fused_triton.promises
def _(params: Params) -> Contract:
    """With the norm rounded, both launches of the split chain are reproduced bit for bit, where rows are summed in the same order.

    Partly rotated neox heads are read as three tiles, the halves so narrow that the two launches spread them over lanes differently.
    Rows must start on 16 bytes, as those of every case do: narrower loads let the tile decide how a row lies on lanes and warps.
    """
    same_order = params.layout == "interleaved" or params.rotary == params.head_dim
    return Bitwise("qknorm_rope/split_triton@1") if params.mode == "round_norm" and same_order else Close()
