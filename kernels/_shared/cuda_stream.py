"""The split of a norm's rows over blocks that stream them through shared memory (the constants of row_stream.cuh).

The figures are of an H200, cold, bfloat16, in microseconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .cuda_rows import DTYPE_CODES, NO_TENSOR
from .modulated_params import ITEM_SIZES, ModulatedParams
from .modulation import ROW, Broadcast, Form

STATIC_BYTES, SYSTEM_BYTES = 1024, 1024
"""Of a block's shared memory, beside its ring: for the sums of its warps, and what CUDA reserves."""
TWO_ROWS_BYTES = 100 * 1024
"""Two rows that a ring may hold at least; wider rows leave too few blocks."""
LEAST_STAGES, MOST_STAGES = 4, 8
RINGS_BYTES = 112 * 1024
"""Of a multiprocessor's rings, beyond LEAST_STAGES slots each. The select01 op of 4352 rows of 4096 takes 27.1 with 8 slots (131 KB) and
27.6 with 4; norm_tanh_mul_add of 4480 rows of 3328 16.1 with 8 (212 KB) and 15.3 with 4."""
LINE_BYTES, LEAST_LINED_BYTES, LEAST_LINED_ROWS = 128, 1024, 6
"""A line of memory, and the shortest row and the fewest rows of a block that copies of whole lines pay for. Norms of 16-bit rows that
start or end within a line take up to 6 % less time so, 1.8 on the mean of 25 shapes, of which one takes 3 % more. Rows of 464 bytes took
8 % more, and four rows of a block up to 22 %. Float32 rows gain nothing."""
MOST_WARPS = 16
NARROW_WORDS, WIDE_WORDS = 12, 24
"""Registers that one vector's shared values take: three rows of 16 bits (scale, shift and gate), three rows of float32."""
MOST_VECTORS = 3
"""Vectors of 16 bytes that a lane holds of each row where rows are many. Both norms of 4128 rows of 3840 take 31.96 with three, 32.69 with
two and 34.39 with one; more warps wait longer for one another than they gain. Two where shared values take more than WIDE_WORDS."""
RESIDENT_WARPS, RESIDENT_WIDE_WARPS = 20, 15
"""Warps per multiprocessor for which the registers suffice, with up to NARROW_WORDS and with more."""
MANY_ROWS = 16
"""Rows per multiprocessor from which rows are streamed. Below, a block takes one row, and each lane little of it."""
LONG_QUEUE = 16
"""Rows per resident block from which a plain launch of a block per row is faster for a residual norm of 16-bit values: 32760 rows of 1536
take 97.3 and 99.7 streamed, 115200 rows of 3072 688 and 724. With shorter queues it is slower: 8192 rows of 2304 37.8 and 36.4."""
LONGEST_QUEUE, CHUNK = 128, 32
"""Rows per resident block from which a block takes CHUNK neighbours, so that the GPU balances the multiprocessors: the norm of 75600 rows
of 5120 with float32 modulation takes 401 with a persistent grid and 395 with chunks. With shorter queues chunks only cost: the RMS norm of
8192 such rows with affine parameters 43.2 instead of 41.4. A residual norm keeps its grid: 781 and 788."""


class Shares(NamedTuple):
    """Which rows each block takes: arguments of `Rows` in row_stream.cuh, in their order."""

    least: int
    """Neighbouring rows of a block, with a step of 1."""
    more: int
    """The first so many blocks of a part take one row more."""
    step: int
    """From one row of a block to its next."""
    parts: int
    """Parts of the rows, each with as many blocks."""
    part_rows: int

    @property
    def single(self) -> bool:
        """Whether every block has one row."""
        return (self.least, self.more, self.step) == (1, 0, 1)


def fits(rows: int, blocks: int, section: int) -> bool:
    """Whether every section of so many rows can be given as many blocks as the others."""
    return rows % section == 0 and blocks % (rows // section) == 0


def even_shares(rows: int, blocks: int, sections: Sequence[int] = ()) -> Shares:
    """As many neighbouring rows for each block, or one more.

    Args:
        sections: rows that share values, from the best to the worst: the first that `fits` is a part, so that no block has rows of two and
            needs the values of both.
    """
    part = next((length for length in sections if fits(rows, blocks, length)), rows)
    least, more = divmod(part, blocks // (rows // part))
    return Shares(least, more, 1, rows // part, part)


def in_step(rows: int, blocks: int, part: int) -> Shares:
    """Rows for each block as far apart as a part has blocks: all of these work on neighbouring rows at a time."""
    step = blocks // (rows // part)
    return Shares(part if step == 1 else 0, 0, step, rows // part, part)


class StreamSplit(NamedTuple):
    warps: int
    """Warps that share a row: a block."""
    stages: int
    """Slots of the ring; 0: lanes load their share of a row themselves."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""
    blocks: int
    """Of the launch."""
    shares: Shares
    combined: bool = False
    """Whether weights, biases and modulations are put together (COMBINED of row_stream.cuh)."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block: its ring (`Ring` of row_stream.cuh)."""
    lines: bool = False
    """Whether copies take whole lines (LINES of row_stream.cuh)."""
    pipelined: bool = False
    """Whether a block takes up its next row between a row's sums and its result (PIPELINED of row_stream.cuh)."""

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def macros(self, hidden: int) -> dict[str, int | bool]:
        return {
            "D": hidden, "WARPS": self.warps, "THREADS": self.threads, "STAGES": self.stages, "MIN_BLOCKS": self.min_blocks,
            "COMBINED": self.combined, "SINGLE": self.shares.single, "LINES": self.lines, "PIPELINED": self.pipelined,
        }  # fmt: skip


class RingMemory(NamedTuple):
    """Bytes of a GPU's shared memory for rings."""

    block: int
    """Most that a block may ask for."""
    multiprocessor: int

    def blocks(self, row_bytes: int) -> int:
        """Blocks that fit a multiprocessor, each with two rows of so many bytes in all streams; 0: a ring cannot hold them."""
        if 2 * row_bytes > TWO_ROWS_BYTES or ring_bytes(2, row_bytes) + STATIC_BYTES > self.block:
            return 0
        return self.multiprocessor // (ring_bytes(2, row_bytes) + STATIC_BYTES + SYSTEM_BYTES)

    def stages(self, row_bytes: int, blocks: int) -> int:
        """Slots of a ring, where so many blocks are resident."""
        room = min(self.block, self.multiprocessor // blocks - SYSTEM_BYTES) - STATIC_BYTES
        return min(MOST_STAGES, ring_slots(room, row_bytes), max(LEAST_STAGES, RINGS_BYTES // (blocks * row_bytes)))


NO_RINGS = RingMemory(0, 0)


def ring_memory(device_index: int, *, aligned: bool) -> RingMemory:
    """What rings may take on this GPU; NO_RINGS where rows do not start on 16 bytes, or the GPU makes no bulk copies."""
    properties = torch.cuda.get_device_properties(device_index)
    if not aligned or properties.major < 9:
        return NO_RINGS
    return RingMemory(properties.shared_memory_per_block_optin, properties.shared_memory_per_multiprocessor)


def lined_bytes(row_bytes: int) -> int:
    """Of a slot's place for a row that is copied in whole lines (`slot_bytes` of row_stream.cuh)."""
    return -(-(row_bytes + LINE_BYTES - 16) // LINE_BYTES) * LINE_BYTES


def ring_bytes(stages: int, row_bytes: int) -> int:
    """Of a `Ring` of row_stream.cuh: each slot has a row of all streams and a barrier."""
    return -(-stages * (row_bytes + 8) // 128) * 128


def ring_slots(room: int, row_bytes: int) -> int:
    """Of the largest `Ring` that fits into so many bytes."""
    return room // 128 * 128 // (row_bytes + 8)


@functools.cache
def split_stream(
    hidden: int, item_size: int, streams: int, rows: int, multiprocessors: int, *, shared_words: int, memory: RingMemory, alike: bool = True
) -> StreamSplit:
    """Choose the warps of a row, the slots of the ring and the rows of a block.

    Args:
        streams: tensors of which a row is read per row of output.
        shared_words: registers per vector for values that rows share, and for what is kept in float32.
        memory: for rings; where it holds none, each lane loads its share of a row itself.
        alike: whether all those tensors have x's dtype.
    """
    vectors = hidden * item_size // 16
    if rows < MANY_ROWS * multiprocessors:
        # 3072 elements: 2.33 with two vectors per lane, 2.42 with one; 1536: 3.27 and 3.10 (select01). Of float32 two are too few.
        warps = min(MOST_WARPS, -(-vectors // (32 if vectors <= 192 else 32 * item_size)))
        return StreamSplit(warps, 0, 1, rows, even_shares(rows, rows))
    narrow = shared_words <= NARROW_WORDS
    warps = min(MOST_WARPS, -(-vectors // (32 * (MOST_VECTORS if shared_words <= WIDE_WORDS else MOST_VECTORS - 1))))
    blocks = max(1, (RESIDENT_WARPS if narrow else RESIDENT_WIDE_WARPS) // warps)
    queue = rows // (multiprocessors * blocks)
    row_bytes = streams * hidden * item_size
    resident = memory.blocks(row_bytes)
    if not resident or (streams == 2 and narrow and queue >= LONG_QUEUE):
        return StreamSplit(warps, 0, blocks, rows, even_shares(rows, rows))
    blocks = min(blocks, resident)
    stages = min(LEAST_STAGES, memory.stages(row_bytes, blocks))
    if streams == 1 and queue >= LONGEST_QUEUE:
        launched = -(-rows // CHUNK)
        shares = even_shares(rows, launched)
    else:
        launched = min(rows, multiprocessors * blocks)
        shares = in_step(rows, launched, rows)
    split = StreamSplit(warps, stages, blocks, launched, shares)
    return _with_ring(split, hidden, item_size, streams, rows, memory, alike=alike)


LEAST_NEIGHBOURS = 4
"""Neighbouring rows that share values from which putting these together costs less than it saves."""
OTHER_REGISTERS, MORE_REGISTERS = 28, 44
"""Of a thread beside vectors: addresses, statistics, the ring. With the words of its vectors this is what sm_90, and other GPUs, need
without a spill."""
ENOUGH_WARPS = 24
"""Per multiprocessor: more hide no more latency."""
LACKING, WIDE_LANES = 12, 4
"""Registers that a thread may lack, and vectors of a lane, where a multiprocessor would else hold one block: of 102 random shapes of row
norms 6 are 3 to 15 % faster so, and none is more than 2 % slower."""
MOST_CHUNK = 32
"""Neighbouring rows of a block: a bit each in select01_stream.cu, and a launch of more than 128 rows per resident block is balanced."""
SECTION_CHUNK = 16
"""Neighbouring rows of a block where it may need the values of two sections, and would have twice as many: the norm of 31 frames of 880
rows of 3072 takes 84.0 with 16 and 85.6 with 52, its residual form 167.1 and 170.9."""


class StreamTile(NamedTuple):
    """What a kernel's choices change of `split_combined`. No rule was found for when they are faster, so runs decide."""

    slots: int | None = None
    """Of a ring; None: as many as `RingMemory.stages` gives."""
    resident_warps: int = ENOUGH_WARPS
    lane_vectors: int = MOST_VECTORS
    lacking: int = 0
    """Registers that a thread may lack: a few spilled words."""
    pipelined: bool = False
    """Whether a block takes up its next row between a row's sums and its result (PIPELINED of row_stream.cuh)."""


DEFAULT_TILE = StreamTile()
STREAM_TILES = {
    "three_slots": StreamTile(slots=3),
    "fewer_warps": StreamTile(resident_warps=16, lane_vectors=WIDE_LANES, lacking=LACKING),
}
"""Choices of kernels that combine. On 27 of 102 random shapes one of them is more than 2 % faster than the default."""
PIPELINED_TILES = {
    "pipelined": StreamTile(resident_warps=16, lane_vectors=WIDE_LANES, lacking=LACKING, pipelined=True),
    "pipelined_12": StreamTile(resident_warps=12, lane_vectors=WIDE_LANES, lacking=LACKING, pipelined=True),
}
"""More choices of those that norm x as it came: of 107 shapes one of them takes 1 to 8 % less than all others on 41."""


@functools.cache
def split_combined(
    hidden: int, item_size: int, streams: int, rows: int, multiprocessors: int, *, kept_words: int, live_words: int,
    memory: RingMemory, alike: bool = True, sections: tuple[int, ...] = (), other_registers: int = OTHER_REGISTERS, selects: bool = False,
    tile: StreamTile = DEFAULT_TILE,
) -> StreamSplit:  # fmt: skip
    """As `split_stream`, where weights, biases and modulations are put together: fewer registers, so more blocks are resident.

    One block per multiprocessor waits for its own reductions: the norm of 2304 rows of 5272 in float16 with float32 parameters took 24.6
    at 15 bytes per nanosecond and multiprocessor, half of what the memory gives.

    Args:
        kept_words: registers per vector for what is kept from row to row.
        live_words: registers per vector for the row that is worked on.
        memory, alike: as of `split_stream`.
        sections: rows that share all values, then those of a sample; none: all rows share them.
        other_registers: of a thread beside vectors.
        selects: whether a block orders its rows by what they select, so that it takes MOST_CHUNK neighbours at most.
        tile: a kernel's choice.
    """
    vectors = hidden * item_size // 16
    row_bytes = streams * hidden * item_size
    resident = memory.blocks(row_bytes)
    most = min(resident or tile.resident_warps, rows // multiprocessors)  # blocks of which each has a row

    def resident_blocks(lane_vectors: int, lacking: int) -> tuple[int, int]:
        """The most blocks of a multiprocessor, and a block's warps."""
        tried: list[tuple[int, int, int]] = []
        for each in range(lane_vectors, 0, -1):
            warps = -(-vectors // (32 * each))
            needed = other_registers - lacking + -(-vectors // (32 * warps)) * (kept_words + live_words)
            blocks = 1
            while (blocks + 1) * warps <= tile.resident_warps and blocks < most and _registers((blocks + 1) * warps) >= needed:
                blocks += 1
            if warps <= MOST_WARPS or not tried:
                tried.append((blocks, min(tile.resident_warps, blocks * warps), min(32, warps)))
        blocks, _, warps = max(tried)
        return blocks, warps

    blocks, warps = resident_blocks(tile.lane_vectors, tile.lacking)
    if blocks == 1:
        blocks, warps = max((blocks, warps), resident_blocks(WIDE_LANES, LACKING), key=lambda found: found[0])
    stages = memory.stages(row_bytes, blocks) if resident else 0
    if tile.slots:
        stages = min(stages, tile.slots)
    launched = min(rows, multiprocessors * blocks)
    queue = -(-rows // launched)
    section = sections[0] if sections else rows
    if launched < rows and not selects and queue < LONGEST_QUEUE and fits(rows, launched, section):
        shares = in_step(rows, launched, section)
    else:
        most = MOST_CHUNK if selects or queue >= LONGEST_QUEUE else SECTION_CHUNK if queue >= 2 * SECTION_CHUNK else queue
        launched = min(rows, launched * -(-queue // most))
        shares = even_shares(rows, launched, sections)
    pipelined = tile.pipelined and stages > 1 and warps > 1
    split = StreamSplit(warps, stages, blocks, launched, shares, combined=True, pipelined=pipelined)
    return _with_ring(split, hidden, item_size, streams, rows, memory, alike=alike)


def registers_beside_vectors(device_index: int) -> int:
    """Registers of a thread beside vectors on this GPU."""
    properties = torch.cuda.get_device_properties(device_index)
    return OTHER_REGISTERS if (properties.major, properties.minor) == (9, 0) else MORE_REGISTERS


def declined(params: ModulatedParams, *, streams: int, forms: Sequence[Form]) -> str | None:
    """Why combining has nothing to gain in such a case; None where it has.

    Args:
        streams: tensors of which a row is read per row of output.
        forms: forms of what is combined.
    """
    if (reason := unshared(params, forms)) is not None:
        return reason
    row_bytes = streams * params.hidden * ITEM_SIZES[params.dtype]
    if 2 * row_bytes > TWO_ROWS_BYTES:
        return f"rows of {row_bytes} bytes in {streams} tensors: two do not fit into {TWO_ROWS_BYTES} bytes of shared memory"
    return None


def unshared(params: ModulatedParams, forms: Sequence[Form]) -> str | None:
    """Why neighbouring rows have too little in common; None where modulations of these forms are the same for several."""
    if "token" in forms or ("frame" in forms and params.tokens // params.frames < LEAST_NEIGHBOURS):
        return f"fewer than {LEAST_NEIGHBOURS} neighbouring rows share a modulation"
    return None


def _with_ring(split: StreamSplit, hidden: int, item_size: int, streams: int, rows: int, memory: RingMemory, *, alike: bool) -> StreamSplit:
    """`split` with its ring: of whole lines where copies of these pay and leave the rings of so many blocks as many slots."""
    row_bytes, stages = hidden * item_size, split.stages
    lined = streams * lined_bytes(row_bytes)
    gains = alike and item_size == 2 and row_bytes % LINE_BYTES != 0 and row_bytes >= LEAST_LINED_BYTES
    lines = gains and rows // split.blocks >= LEAST_LINED_ROWS and 0 < stages <= memory.stages(lined, split.min_blocks)
    return split._replace(shared_bytes=ring_bytes(stages, lined if lines else streams * row_bytes), lines=lines)


def _registers(warps: int) -> int:
    """Of a thread, where so many warps are resident: a multiprocessor's four partitions have 512 for each lane of a warp."""
    return 512 // -(-warps // 4) // 8 * 8


def section_of(rows: int, tokens: int, *broadcasts: Broadcast) -> int:
    """Neighbouring rows, counted over all samples, that read the same rows of all these modulations."""
    length = 0
    for one in broadcasts:
        if one.addressing == ROW:
            length = math.gcd(length, one.rows_per_group if one.group_stride else tokens)
    return length or max(1, rows)


def words_of(item_size: int, *codes: int) -> int:
    """Registers per vector of activations for one row of each dtype of `codes` (NO_TENSOR: none)."""
    return sum(8 if item_size == 2 and code == DTYPE_CODES[torch.float32] else 4 for code in codes if code != NO_TENSOR)
