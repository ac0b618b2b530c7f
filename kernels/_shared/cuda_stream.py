"""The split of a norm's rows over blocks that stream them through shared memory (the constants of row_stream.cuh)."""

from __future__ import annotations

import functools
from typing import NamedTuple

SHARED_BYTES = 47 * 1024
"""Of a block's 48 KB without opting in, what the ring may take; the rest holds the warps' sums and the barriers."""
MULTIPROCESSOR_BYTES = 220 * 1024
"""Shared memory of a multiprocessor that rings may take in all (H100, H200: 227 KB, one of them reserved for each block)."""
MOST_WARPS = 16
MOST_VECTORS = 3
"""Vectors of 16 bytes that a lane holds of each row where rows are many."""
RESIDENT_WARPS = 20
"""Warps per multiprocessor that the registers of a lane with that many vectors leave room for."""
CHUNK = 16
"""Rows of a block. Enough that starting the ring costs little; so few that blocks still balance the multiprocessors."""
MANY_ROWS = 16
"""Rows per multiprocessor from which rows are streamed. Below, a block takes one row, and each lane as little of it as possible."""


class StreamSplit(NamedTuple):
    warps: int
    """Warps that share a row: a block."""
    stages: int
    """Slots of the ring; 0: lanes load their share of a row themselves."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""
    chunk: int
    """Neighbouring rows of a block; 0: a persistent grid, whose blocks take every grid-th row."""
    both: bool = False
    """Whether both row sets of a select01 op are held."""
    evict_first: bool = False
    """Whether outputs leave the L2 first."""

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Blocks of the launch."""
        return -(-rows // self.chunk) if self.chunk else min(rows, multiprocessors * self.min_blocks)

    def macros(self, hidden: int) -> dict[str, int | bool]:
        return {
            "D": hidden, "WARPS": self.warps, "THREADS": self.threads, "STAGES": self.stages, "MIN_BLOCKS": self.min_blocks,
            "EVICT_FIRST": self.evict_first,
        }  # fmt: skip


@functools.cache
def split_stream(hidden: int, item_size: int, streams: int, rows: int, multiprocessors: int, *, narrow: bool, aligned: bool) -> StreamSplit:
    """Choose the warps of a row, the slots of the ring and the rows of a block.

    Args:
        streams: tensors of which a row is read per row of output.
        narrow: whether values that rows share are 16 bits wide, and no affine parameters are among them.
        aligned: whether every row starts on 16 bytes, as bulk copies need.
    """
    vectors = hidden * item_size // 16
    if rows < MANY_ROWS * multiprocessors:
        return StreamSplit(min(MOST_WARPS, -(-vectors // 32)), 0, 1, 1, both=True)
    most = MOST_VECTORS if narrow else 2
    warps = min(MOST_WARPS, -(-vectors // (32 * most)))
    blocks = max(1, RESIDENT_WARPS // warps)
    row_bytes = streams * hidden * item_size
    stages = min(4, SHARED_BYTES // row_bytes, MULTIPROCESSOR_BYTES // blocks // row_bytes)
    return StreamSplit(warps, stages if aligned and stages > 1 else 0, blocks, CHUNK)
