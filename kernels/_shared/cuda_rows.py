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
