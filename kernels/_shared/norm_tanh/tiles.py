"""The split of norm_tanh rows into Triton programs, and over warps in CUDA C++."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..cuda_rows import FILLING_WARPS, words
from ..row_tiles import WIDE, RowTile
from ..row_tiles import tuned as _tuned

MANY_ROWS = 1024
"""Rows of a launch from which programs of two rows still fill the GPU; an H200 holds some 400 such programs."""
BLOCK_WARPS = 8
"""Most warps per block; a block has the largest number up to this that holds whole rows."""
MOST_VECTORS = 3
"""Vectors of 16 bytes that a lane may hold of x, and as many of the residual. The lane also keeps the tanh of as many gates in float32.
With four vectors of each, the limit of 128 registers slows the kernel: too few warps are resident."""
PREFETCHING_REGISTERS = 128
"""Of a thread that holds three vectors of x and the residual, three of each ahead, and the tanh of as many gates."""


def tuned(hidden: int, rows: int) -> RowTile:
    """`row_tiles.tuned`, with two rows per program where rows are long, up to 4096, and `rows`, those of the whole launch, are many.

    The tanh of a gate that rows share is computed once for both.  It takes more instructions than all the rest: compiled for sm_90 a
    row of 3840 in bfloat16 takes 39 per element with one row per program, 26 with two.  An H200 has time for some 45 while it moves
    the 6 bytes (128 lanes on 132 multiprocessors at 1.8 GHz, 4 TB/s).

    D = 3840 is one tile of 4096 whose last sixteenth neither loads nor computes on anything that is used; the four tiles that it is
    the sum of would need loads of 8 and 4 bytes.
    """
    tile = _tuned(hidden)
    if tile.rows > 1 or rows < MANY_ROWS or tile.head + tile.tail > WIDE:
        return tile
    return tile._replace(rows=2, num_warps=2 * tile.num_warps)


def most_registers(tile: RowTile, *, narrow: bool) -> int | None:
    """The compiler's limit of registers per thread, or None.

    Without a limit the compiler takes 93 for both norms of two rows of 4096 on eight warps. 80 suffice without a spill, and three programs
    are resident instead of two. Code for any count of rows spills 8 bytes with both norms (Triton 3.9, sm_90). It was as fast on an H200 as
    code for multiples of 16 (4128 rows of 3840 with Triton 3.6: 35.8 us, and 36.2 us for multiples of 16).
    """
    held = tile.rows * (tile.head + tile.tail) // (32 * tile.num_warps)
    return 80 if narrow and tile.rows == 2 and tile.num_warps == 8 and held == 32 else None


class RowWarps(NamedTuple):
    warps: int
    """Warps that share a row, 1 to 8."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""
    prefetch: bool = False
    """Whether the loads of a row start before the work on the previous row."""

    @property
    def rows(self) -> int:
        """Rows that a block works on at once."""
        return max(1, BLOCK_WARPS // self.warps)

    @property
    def threads(self) -> int:
        return 32 * self.warps * self.rows

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Blocks of a persistent launch: as many as the GPU holds at once, or as the rows fill."""
        return min(multiprocessors * self.min_blocks, -(-rows // self.rows))


@functools.cache
def spread_row(hidden: int, item_size: int, rows: int, multiprocessors: int, *, narrow: bool) -> RowWarps:
    """Choose the warps that share a row: few enough to hold x and the residual in registers, with the fewest idle lanes.

    D = 3840 in 16 bits is 480 vectors of 16 bytes: 5 warps of 3 vectors per lane. With 4 warps, a sixteenth of the lanes would idle.

    Args:
        rows: rows of the whole launch; few rows get more warps each.
        narrow: whether all values are 16 bits wide.
    """
    vectors = hidden * item_size // 16
    possible = [warps for warps in range(1, BLOCK_WARPS + 1) if 32 * (warps - 1) < vectors]
    held = [warps for warps in possible if words(vectors, warps) <= 4 * MOST_VECTORS] or possible[-1:]
    # Warps that would leave lanes without a vector buy nothing.
    filling = [warps for warps in held if rows * warps >= multiprocessors * FILLING_WARPS or 32 * warps > vectors]
    chosen = min(filling or held[-1:], key=lambda warps: (32 * warps * words(vectors, warps), warps))
    block = RowWarps(chosen, 1).threads // 32
    each = words(vectors, chosen) // 4

    def resident(registers: int) -> int:
        """Blocks for which a multiprocessor's four partitions, 512 registers for each lane of a warp, have room."""
        return max(1, 4 * (512 // registers) // block)

    ahead = RowWarps(chosen, resident(PREFETCHING_REGISTERS), prefetch=True)
    # Prefetching needs a second row to fetch.
    if narrow and each <= MOST_VECTORS and rows > multiprocessors * ahead.min_blocks * ahead.rows:
        return ahead
    # Fewest that sm_90 needs without a spill.
    return RowWarps(chosen, resident(128 if not narrow or each > MOST_VECTORS else 96 if each == MOST_VECTORS else 80))
