"""Tile sizes of the Triton launches, and the launch policy for few tokens."""

from __future__ import annotations

from typing import NamedTuple

from ._arguments import Heads

ELEMENTS_PER_WARP = 1024
"""32 elements in flight a lane, which is what made qknorm_rope's launch with the same loads and stores fastest on an H200
(kernels/qknorm_rope/_tiles.py: eight heads of 128 to a warp; more than one warp shares its cosines through shared memory)."""
ENOUGH_PROGRAMS = 528
"""Four programs for each of an H200's 132 multiprocessors: fewer leave multiprocessors or their schedulers without a warp."""


class Tile(NamedTuple):
    block_heads: int
    """Heads per program (or per step of its loop), a power of two."""
    num_warps: int


def per_token(rotary: int, *heads: Heads) -> Tile:
    """Tile of a program that takes all heads of a token, in as many steps as that needs: at most four warps."""
    most = _power_of_two(max(each.heads for each in heads))
    width = _power_of_two(rotary)
    block_heads = max(1, min(most, 4 * ELEMENTS_PER_WARP // width))
    return Tile(block_heads, num_warps=max(1, block_heads * width // ELEMENTS_PER_WARP))


def per_heads(rows: int, rotary: int, *heads: Heads) -> Tile:
    """Tile of one warp over some heads of a token; of fewer heads where there are too few tokens to fill the GPU otherwise.

    Four tokens of 32 + 8 heads of 128 are 20 programs of eight heads, on 20 of 132 multiprocessors; of one head they are 160.
    """
    most = _power_of_two(max(each.heads for each in heads))
    block_heads = max(1, min(most, ELEMENTS_PER_WARP // _power_of_two(rotary)))
    while block_heads > 1 and programs(rows, block_heads, *heads) < ENOUGH_PROGRAMS:
        block_heads //= 2
    return Tile(block_heads, num_warps=1)


def programs(rows: int, block_heads: int, *heads: Heads) -> int:
    """Programs of a launch over these heads of every token."""
    return rows * sum(-(-each.heads // block_heads) for each in heads)


def _power_of_two(number: int) -> int:
    """The least power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
