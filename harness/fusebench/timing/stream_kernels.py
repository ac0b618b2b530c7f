"""Triton functions of the yardsticks: a stream of any mix of reads and writes, an empty launch, a launch that moves one word."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tiles"])
def stream(  # noqa: PLR0917
    source,
    target,
    words,
    part_read,
    part_written,
    tiles,
    reads: tl.constexpr,
    writes: tl.constexpr,
    reads_part: tl.constexpr,
    writes_part: tl.constexpr,
    block: tl.constexpr,
    load_hint: tl.constexpr,
    store_hint: tl.constexpr,
    stages: tl.constexpr,
):
    """Read reads regions of `words` words and the first `part_read` of one more, write writes regions and `part_written` words of one more.

    A program takes one tile of block words of every region at a time, so that reads and writes keep their proportion all the time.  Every
    word is read once and written once; each written word depends on the words that its tile reads, so that no load can be left out.
    """
    region = words.to(tl.int64)
    place = tl.arange(0, block)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=stages):
        first = tile * block
        inside = place < words - first
        at = source + first.to(tl.int64)
        to = target + first.to(tl.int64)
        value = place
        for number in tl.static_range(reads):
            value += tl.load(at + number * region + place, mask=inside, eviction_policy=load_hint)
        # Masks, no branches, for the parts: a branch would make one load wait for the others, twice the latency of a short call, and a
        # load whose only use is behind a branch could move there.
        if reads_part:
            value += tl.load(at + reads * region + place, mask=place < part_read - first, other=0, eviction_policy=load_hint)
        for number in tl.static_range(writes):
            tl.store(to + number * region + place, value + number, mask=inside, eviction_policy=store_hint)
        if writes_part:
            tl.store(to + writes * region + place, value + writes, mask=place < part_written - first, eviction_policy=store_hint)


@triton.jit
def nothing(target):
    """An empty launch."""


@triton.jit
def one_word(source, target):
    """One load and a store that waits for it: the shortest way through the memory and back."""
    tl.store(target, tl.load(source) + 1)
