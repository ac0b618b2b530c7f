"""Units of the Triton launches' tiles. Each version chooses its own tile."""

from __future__ import annotations

from typing import NamedTuple

from ._plan import Heads

ELEMENTS_PER_WARP = 1024
"""32 elements in flight a lane, which is what made qknorm_rope's launch with the same loads and stores fastest on an H200
(kernels/qknorm_rope/_tiles.py: eight heads of 128 to a warp; more than one warp shares its cosines through shared memory)."""
ENOUGH_PROGRAMS = 528
"""Four programs for each of an H200's 132 multiprocessors: fewer leave multiprocessors or their schedulers without a warp."""


class Tile(NamedTuple):
    block_heads: int
    """Heads per program (or per step of its loop), a power of two."""
    num_warps: int


def programs(rows: int, block_heads: int, *heads: Heads) -> int:
    """Programs of a launch over these heads of every token."""
    return rows * sum(-(-each.heads // block_heads) for each in heads)


def power_of_two(number: int) -> int:
    """The least power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
