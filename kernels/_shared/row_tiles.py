"""The split of a norm's rows into Triton programs: tile widths, rows and warps.

A released version has its own `tile` in its own file. The split yardsticks use these functions, and tiles are built from them.
"""

from __future__ import annotations

from typing import NamedTuple

import triton


class RowTile(NamedTuple):
    rows: int
    """Rows per program, a power of two."""
    head: int
    """Width of the first tile, a power of two."""
    tail: int
    """Width of the second tile, a power of two, or 0 where the first holds the whole row."""
    num_warps: int


ELEMENTS = 1024
"""Fewest elements per program: 32 per thread of one warp, which is what keeps enough loads in flight (measured on an H200 for
qknorm_rope: 4096 tokens of 24 heads of 128 take 61.2 us with 8 elements a thread, 31.9 with 16, 24.9 with 32)."""


WIDE = 4096
"""Block width from which one masked block is faster than two exact tiles. Measured on an H200, cold, bfloat16, microseconds (two tiles,
one block): norm of 4096 rows of 3072: 14.2, 13.8; with a residual 26.1, 24.1; 512 rows 3.79, 3.46; residual of 75600 rows of 5120: 920,
797. Below this width two tiles are faster: norm of 32760 rows of 1536 takes 51.9, and 66.5 in one block."""


def tuned(hidden: int) -> RowTile:
    """32 to 64 elements per thread: `two_tiles`, or from WIDE on one masked block on four warps."""
    tile = two_tiles(hidden)
    block = triton.next_power_of_2(hidden)
    return RowTile(1, block, 0, num_warps=4) if tile.tail and block >= WIDE else tile


def two_tiles(hidden: int) -> RowTile:
    """32 to 48 elements per thread: short rows share a program, D sets the warps, and no lane is idle if D is the sum of two powers of two
    (1536, 3072, 5120, 6144)."""
    block = triton.next_power_of_2(hidden)
    head = block if block == hidden else block // 2
    tail = triton.next_power_of_2(hidden - head) if hidden > head else 0
    if head + tail == block:
        head, tail = block, 0
    rows = max(1, ELEMENTS // (head + tail))
    rows = 1 << (rows.bit_length() - 1)
    return RowTile(rows, head, tail, num_warps=max(1, rows * head // ELEMENTS))


FEW_ROWS = 512
"""Rows up to which a version that asks for everything at once gains: on an H200 (d1e5c02) the select01 ops took 4 to 26 % less at 6 to 512
rows, and 9 to 57 % more at 514 to 1028."""
ROW_ELEMENTS = 8
"""Elements per thread of a row that nothing runs beside: one load of 16 bytes of each tensor in 16 bits."""


def one_row(hidden: int) -> RowTile:
    """A row per program, in one masked block on as many warps as ask for it in one step."""
    block = triton.next_power_of_2(hidden)
    return RowTile(1, block, 0, num_warps=min(16, max(1, block // (32 * ROW_ELEMENTS))))


def few_rows_tile(hidden: int, factor: float) -> RowTile:
    """`one_row` with `factor` times its warps, of which a row of 128 or more has two: on an H200 21 rows of 256 took 1.55 us, and 1.77 by
    one warp each."""
    tile = one_row(hidden)
    return with_warps(tile._replace(num_warps=max(tile.num_warps, min(2, max(1, tile.head // 64)))), factor)


def more_than_few(rows: int) -> str | None:
    """Why a launch of so many rows is not for a version that is made for few; None where it is."""
    return f"{rows} rows: made for at most {FEW_ROWS}" if rows > FEW_ROWS else None


def not_few_rows(rows: int, hidden: int, *, unaligned: bool) -> str | None:
    """Why a call is not for a version whose loads are as short as those of `few_rows_triton`; None where it is.

    Args:
        unaligned: whether 16 does not divide the stride of a row.
    """
    if unaligned:
        return f"rows of {hidden}: 16 does not divide it, and Triton would load 2 or 4 bytes at a time"
    return more_than_few(rows)


WARPS = {"half_the_warps": 0.5, "twice_the_warps": 2.0}
"""Choices of a row kernel, by the factor of its warps: `fusebench tune` measures them."""


def with_warps(tile: RowTile, factor: float) -> RowTile:
    """`tile` with so many times its warps, from 1 to 16."""
    return tile._replace(num_warps=min(16, max(1, int(tile.num_warps * factor))))


def flat(hidden: int) -> RowTile:
    """For steps without a reduction (modulation alone, residual and gate alone): as `two_tiles`, with twice the warps for occupancy."""
    tile = two_tiles(hidden)
    return tile._replace(num_warps=min(8, 2 * tile.num_warps))
