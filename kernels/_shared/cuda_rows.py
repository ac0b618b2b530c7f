"""How rows of a norm are spread over warps, blocks and the GPU in CUDA C++ (the constants of row_norm.cuh)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

THREADS = 256
BLOCK_WARPS = THREADS // 32
DTYPE_CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
NO_TENSOR = -1
"""In the place of a dtype code or an addressing: the argument is absent."""
MOST_WORDS = 32
"""32-bit registers that a lane's share of the loaded rows may take: beyond, a row gets more warps.  Eight vectors of 16 bytes in
flight per lane, and with the scales and shifts that the compiler has in flight beside them (two registers for each of a row's) the
128 registers of two resident blocks hold it all; twelve vectors, a row of 3072 in 16 bits on one warp, spill."""
FILLING_WARPS = 16
"""Warps per multiprocessor below which a row is spread over more warps: short text streams would leave most of the GPU idle."""


class RowSplit(NamedTuple):
    warps: int
    """Warps that share a row: 1, 2, 4 or 8."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""
    prefetch: bool = False
    """Whether a row is asked for before the one before it is worked on."""


VECTORS_AHEAD = 3
"""Vectors of 16 bytes that a lane holds of a row, and as many of the next, where rows are prefetched.  On an H200, cold, bfloat16,
microseconds without and with: norm of 4096 rows of 3072 on 4 warps a row 13.6, 12.7; of 6144 on 8 warps 28.2, 24.9; of 32760 rows of
1536 with float32 modulation on 2 warps 54.8, 51.0; of 75600 rows of 5120 likewise on 8 warps 476, 415."""
MOST_WORDS_AHEAD = 48
"""Registers that a row and the next may take together of a lane: both inputs of a residual norm, three vectors each, twice."""


@functools.cache
def split_ahead(hidden: int, item_size: int, inputs: int, rows: int, multiprocessors: int, *, narrow: bool) -> RowSplit:
    """As `split_row`, for a kernel that can prefetch: fewer vectors a lane, and the next row's loads in flight behind them.

    Prefetching needs a second row to fetch: where the resident blocks hold all rows at once it is left out.
    """
    vectors = hidden * item_size // 16
    warps = 1
    while warps < BLOCK_WARPS and words(vectors, warps) > 4 * VECTORS_AHEAD:
        warps *= 2
    min_blocks = 3 if narrow or inputs == 1 else 2
    if 2 * inputs * words(vectors, warps) > MOST_WORDS_AHEAD:
        return split_row(hidden, item_size, inputs, rows, multiprocessors, narrow=narrow)
    if rows <= multiprocessors * min_blocks * (BLOCK_WARPS // warps):
        return RowSplit(warps, min_blocks=2)
    return RowSplit(warps, min_blocks, prefetch=True)


@functools.cache
def split_row(hidden: int, item_size: int, inputs: int, rows: int, multiprocessors: int, *, narrow: bool) -> RowSplit:
    """How many warps share a row.

    Args:
        inputs: rows of activations that are held at once per row of output (x alone: 1; x and residual: 2).
        rows: rows of the whole launch; few rows get more warps each.
        narrow: whether what rows share is little: 16-bit scale and shift, no affine parameters.  Float32 ones take twice the
            registers, and blocks must be fewer.
    """
    vectors = hidden * item_size // 16
    warps = 1
    while warps < BLOCK_WARPS and words(vectors, warps) * inputs > MOST_WORDS:
        warps *= 2
    # A doubling that would leave lanes without a vector buys nothing.
    while warps < BLOCK_WARPS and rows * warps < multiprocessors * FILLING_WARPS and vectors >= 64 * warps:
        warps *= 2
    held = words(vectors, warps) * inputs
    return RowSplit(warps, min_blocks=2 if held > 24 or not narrow else 3 if held > 16 else 4)


def words(vectors: int, warps: int) -> int:
    """Registers that one lane's vectors of a row take."""
    return 4 * -(-vectors // (32 * warps))


def grid(rows: int, split: RowSplit, multiprocessors: int) -> int:
    """Blocks of a persistent launch: as many as the GPU holds at once, or as the rows fill."""
    return min(multiprocessors * split.min_blocks, -(-rows // (BLOCK_WARPS // split.warps)))
