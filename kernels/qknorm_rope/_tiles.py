"""Tile sizes of the tuned Triton launches, with the measurements behind them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton


class Tile(NamedTuple):
    block_heads: int
    """Heads per program, a power of two."""
    num_warps: int


def fused(q: torch.Tensor) -> Tile:
    """Tile of the fused launch over `[N, heads, D]`: 32 elements a thread, eight heads of 128 to a warp.

    On an H200, 4096 tokens of 24 heads of 128 in bfloat16: 61.2 us with two heads to a warp, 31.9 with four, 24.9 with eight;
    with more warps to the program the cosines go through shared memory and a barrier (eight heads: 25.9 us on two, 26.3 on four).
    """
    width = triton.next_power_of_2(q.shape[2])
    block_heads = 16 if width <= 64 else 8
    return Tile(block_heads, num_warps=max(1, block_heads * width // 1024))


def split(q: torch.Tensor) -> Tile:
    """Tile of each launch of the split chain: the one that made the pair fastest (51.7 us where eight heads on four warps take 54.6)."""
    width = triton.next_power_of_2(q.shape[2])
    return Tile(block_heads=16, num_warps=max(1, 16 * width // 512))
