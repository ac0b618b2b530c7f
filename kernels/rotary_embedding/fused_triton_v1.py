"""The simplest correct fusion: one program per token, over all its heads of q and k, which share its cosines and sines."""

from __future__ import annotations

from fusebench import Bitwise, kernel

from ._plan import Heads
from ._tiles import ELEMENTS_PER_WARP, Tile, power_of_two
from ._triton import UNCONTRACTED, launch, rotated
from .op import Arguments


def tile(rotary: int, *heads: Heads) -> Tile:
    """Tile of a program that takes all heads of a token, in as many steps as needed, on at most four warps."""
    most = power_of_two(max(each.heads for each in heads))
    width = power_of_two(rotary)
    block_heads = max(1, min(most, 4 * ELEMENTS_PER_WARP // width))
    return Tile(block_heads, num_warps=max(1, block_heads * width // ELEMENTS_PER_WARP))


@kernel(
    "rotary_embedding", "fused_triton", version=1, role="fused", language="triton", replay=True,
    contract=Bitwise("rotary_embedding/split_torch@1"), note="one program per token",
)  # fmt: skip
def fused_triton(call: Arguments) -> None:
    """Overwrites q and k. A handful of tokens leaves most of the GPU idle; version 2 mends that."""
    plan = call.checked()
    parts = rotated(call, plan)
    launch(call, plan, tile(plan.rotary, *(heads for _, heads in parts)), UNCONTRACTED, *parts, per_token=True)
