"""The split yardstick: one well-tuned launch for q, then one for k, in place."""

from __future__ import annotations

from fusebench import Bitwise, kernel

from ._plan import Heads
from ._tiles import ELEMENTS_PER_WARP, ENOUGH_PROGRAMS, Tile, power_of_two, programs
from ._triton import UNCONTRACTED, launch, rotated
from .op import Arguments


def tile(rows: int, rotary: int, *heads: Heads) -> Tile:
    """Tile of one warp over some heads of a token; of fewer heads where there are too few tokens to fill the GPU otherwise.

    Four tokens of 32 + 8 heads of 128 are 20 programs of eight heads, on 20 of 132 multiprocessors; of one head they are 160.
    """
    most = power_of_two(max(each.heads for each in heads))
    block_heads = max(1, min(most, ELEMENTS_PER_WARP // power_of_two(rotary)))
    while block_heads > 1 and programs(rows, block_heads, *heads) < ENOUGH_PROGRAMS:
        block_heads //= 2
    return Tile(block_heads, num_warps=1)


@kernel(
    "rotary_embedding", "split_triton", version=1, role="split", language="triton",
    contract=Bitwise("rotary_embedding/split_torch@1"), note="q, then k: a launch each, in place",
)  # fmt: skip
def split_triton(call: Arguments) -> None:
    """Overwrites q and k."""
    plan = call.checked()
    for part in rotated(call, plan):
        launch(call, plan, tile(plan.rows, plan.rotary, part[1]), UNCONTRACTED, part)
