"""The split of a norm's rows over warps, blocks and the GPU in CUDA C++ (the constants of row_norm.cuh)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from .modulation import ROW, Broadcast

THREADS = 256
BLOCK_WARPS = THREADS // 32
DTYPE_CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
NO_TENSOR = -1
"""Stands for the dtype code or addressing of an absent argument."""
OF_SAMPLE, OF_TOKEN = 3, 4
"""Beside the addressings of modulation.py, what row_norm.cuh tells apart of ROW: a row for every sample, or for every token, is found
without a division."""
MOST_WORDS = 32
"""32-bit registers that a lane's share of the loaded rows may take; a longer row gets more warps. This is eight vectors of 16 bytes in
flight per lane. The compiler adds scales and shifts (two registers per register of a row), and the 128 registers of two resident blocks
hold all of it. Twelve vectors (a row of 3072 in 16 bits on one warp) spill."""
FILLING_WARPS = 16
"""Warps per multiprocessor below which a row is spread over more warps: short text streams would leave most of the GPU idle."""


class RowSplit(NamedTuple):
    warps: int
    """Warps that share a row: 1, 2, 4 or 8; of `split_alone` and `split_neighbours` 1 to 32."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""
    prefetch: bool = False
    """Whether the loads of a row start before the work on the previous row."""
    threads: int = THREADS
    """Threads of a block."""
    together: int = 0
    """Neighbouring rows that a block has to itself and works on at once; 0: a persistent grid, whose blocks take a row at a time."""


VECTORS_AHEAD = 3
"""Vectors of 16 bytes that a lane holds of a row; with prefetching, it holds as many of the next row. Measured on an H200, cold, bfloat16,
microseconds without and with prefetching: norm of 4096 rows of 3072 on 4 warps a row 13.6, 12.7; of 6144 on 8 warps 28.2, 24.9; of 32760
rows of 1536 with float32 modulation on 2 warps 54.8, 51.0; of 75600 rows of 5120 with float32 modulation on 8 warps 476, 415."""
MOST_WORDS_AHEAD = 48
"""Registers of a lane that a row and the next row may take together: both inputs of a residual norm, three vectors each, twice."""


@functools.cache
def split_ahead(hidden: int, item_size: int, inputs: int, rows: int, multiprocessors: int, *, narrow: bool) -> RowSplit:
    """As `split_row`, for a kernel that can prefetch: fewer vectors per lane, and the next row's loads in flight behind them.

    Prefetching needs a second row, so there is none when the resident blocks hold all rows at once.
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
    """Choose the number of warps that share a row.

    Args:
        inputs: rows of activations held at once per row of output (x alone: 1; x and residual: 2).
        rows: rows of the whole launch; few rows get more warps each.
        narrow: whether rows share only 16-bit scale and shift, without affine parameters. Float32 values take twice the registers, so
            fewer blocks are resident.
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


THREADS_ALONE = 1024
"""Threads per multiprocessor for which `split_alone` leaves registers: 64 each, at the price of a few spilled words in the select01 ops.
On an H200 the norm of 115200 rows of 3072 took 343 us by them, and 407 where the compiler took what it liked (c834b94)."""


@functools.cache
def split_alone(hidden: int, item_size: int, each: int) -> RowSplit:
    """A block for every row: no lane is idle at widths that are no power of two, and the hardware hands out the next row wherever one ends.

    Args:
        each: vectors of 16 bytes of each input that a lane asks for at once.
    """
    vectors = hidden * item_size // 16
    warps = -(-vectors // (32 * each))
    warps = min(32, max(warps, min(2, -(-vectors // 32))))
    return RowSplit(warps, max(1, THREADS_ALONE // (32 * warps)), threads=32 * warps, together=1)


ELEMENTS_OF_TWO = 16
"""Elements of a lane of `split_alone` where a row is the sum of several inputs: two vectors of 16 bits, four of float32. On an H200 the
residual norm of 384 rows of 6592 in float32 takes 10.6 us with four and 13.7 with two, that of 704 rows of 5392 16.1 and 18.7."""
MOST_THREADS = 1536
"""Threads per multiprocessor, with 40 registers each, for which `at_once` makes room. On an H200 the residual norm of 1024 rows of 3072
took 6.6 us so, and 7.9 by two waves, of which the second had a quarter of the blocks (side by side in one process)."""


def at_once(split: RowSplit, rows: int, multiprocessors: int, *, most_threads: int = MOST_THREADS) -> RowSplit:
    """`split` with all of a launch's blocks resident at once, where so many threads per multiprocessor suffice for that."""
    needed = -(-rows // multiprocessors)
    return split._replace(min_blocks=needed) if split.min_blocks < needed <= most_threads // split.threads else split


NEIGHBOURS = {1: 3, 2: 2}
"""Rows of a block of `split_neighbours`, by inputs. On an H200 the norm of 32760 rows of 1536 with float32 modulation takes 54.1 us with
three rows, 54.5 with two, 54.9 with four and 58.1 with a block for every row."""
VECTORS_OF_NEIGHBOURS = (3, 4)
"""Vectors of 16 bytes of each row that a lane of `split_neighbours` holds, so that fewer lanes are idle. The norm of 75600 rows of 5120
takes 375 us with four on 5 warps, and 405 with three on 7, of which the last is half idle."""
THREADS_OF_NEIGHBOURS = 512
"""Threads per multiprocessor for which `split_neighbours` leaves registers: 128 each. With 64 each the rows spill."""


@functools.cache
def split_neighbours(hidden: int, item_size: int, inputs: int) -> RowSplit:
    """A block for a few neighbouring rows, which loads what they share once.

    Args:
        inputs: rows of activations held at once per row of output.
    """
    vectors = hidden * item_size // 16
    warps = min((-(-vectors // (32 * each)) for each in VECTORS_OF_NEIGHBOURS), key=lambda warps: (words(vectors, warps) * warps, -warps))
    return RowSplit(warps, max(1, THREADS_OF_NEIGHBOURS // (32 * warps)), threads=32 * warps, together=NEIGHBOURS[inputs])


def addressing_code(values: Broadcast | None) -> int:
    """How row_norm.cuh addresses a modulation; NO_TENSOR where there is none."""
    if values is None:
        return NO_TENSOR
    if values.addressing != ROW:
        return values.addressing
    return OF_SAMPLE if values.group_stride == 0 else OF_TOKEN if values.rows_per_group == 1 else ROW


def item_size_of(code: int) -> int:
    """Bytes of an element, by its dtype's code."""
    return 4 if code == DTYPE_CODES[torch.float32] else 2


def strides_aligned(values: Broadcast | None, code: int) -> bool:
    """Whether the strides keep every row of a modulation on 16 bytes, given that the first row is."""
    if values is None or not values.channel_stride:
        return True
    return (values.batch_stride | values.group_stride) * item_size_of(code) % 16 == 0


KEPT_SHARE = 0.65
"""Of the L2, up to which what a launch writes is kept there where its reads leave first. On an H200 (60 MiB) norm_tanh_mul_add of 84 to
95 MB takes 1.1 to 2.3 % less so, and an RMS norm of 62.9 MB, which all fits, 2 % more; where more is written it costs 1 to 5 %."""


def launch_macros(batch: int, tensor_bytes: int, l2_bytes: int, *, read: int, written: int) -> dict[str, int | bool]:
    """Macros of row_norm.cuh that a launch's size decides.

    What is read once leaves the L2 first where what is written fits into it, and all of the launch does not.

    Args:
        batch: samples of x.
        tensor_bytes: of one tensor of activations.
        l2_bytes: of the GPU's L2.
        read, written: such tensors that the launch reads, and writes, once.
    """
    leaves = (read + written) * tensor_bytes > l2_bytes and written * tensor_bytes <= KEPT_SHARE * l2_bytes
    return {"SAMPLES": batch > 1, "LEAVES": leaves}


def words(vectors: int, warps: int) -> int:
    """Registers that one lane's vectors of a row take."""
    return 4 * -(-vectors // (32 * warps))


def grid(rows: int, split: RowSplit, multiprocessors: int) -> int:
    """Blocks of a launch: one for a few rows each, or of a persistent launch as many as the GPU holds at once, or as the rows fill."""
    if split.together:
        return -(-rows // split.together)
    return min(multiprocessors * split.min_blocks, -(-rows // (BLOCK_WARPS // split.warps)))
