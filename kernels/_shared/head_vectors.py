"""Launches head_vectors.cu, compiled by NVRTC for each shape's constants: rotated heads with a vector of 16 bytes to each lane."""

from __future__ import annotations

import functools

import torch

from fusebench.registry import nvrtc

from . import rotary_heads
from .rotary_heads import THREADS, Call, Split

SOURCE = rotary_heads.SOURCE.with_name("head_vectors.cu")
MOST_LANES = 32


def declined(layout: str, rotary: int, head_dim: int, item_size: int, *, norm: bool) -> str | None:
    """Why no specialisation exists, in the order of the source's static_asserts; None when one exists."""
    vector = 16 // item_size
    if not norm and (rotary % vector or (layout == "neox" and rotary // 2 % vector)):
        return f"rope_dim {rotary}: it, and in the neox layout half of it, must be a multiple of {vector} elements (16 bytes)"
    extent = head_dim if norm else rotary
    if extent > MOST_LANES * vector:
        return f"{extent} elements of a head: a warp holds at most {MOST_LANES * vector}, a vector to each lane"
    return None


@functools.lru_cache(maxsize=512)
def specialise_call(call: Call, device_index: int) -> tuple[nvrtc.KernelSource, int, int]:
    """Source, blocks and threads of a block."""
    multiprocessors = torch.cuda.get_device_properties(device_index).multi_processor_count
    split = split_heads(call, multiprocessors)
    return specialise(call, split), -(-_threads(call, split.unroll) // split.threads), split.threads


def split_heads(call: Call, multiprocessors: int) -> Split:
    """The fewest heads per lane with which all blocks are resident at once; where none are, up to six, those with the fewest instructions.

    A lane's addresses, cosines and sines take about as many instructions as two heads, and those of a head that a token lacks are lost.
    Measured on an H200, cold: 512 tokens of 48 heads of 128 take 6.5 us with six heads per lane, all resident, 7.5 with three; of as many
    blocks as fit, eight with interleaved heads (64 registers) and six with others were best of four to twelve.
    """
    resident, heads = THREADS * multiprocessors, call.q.heads + call.k.heads
    most = min(heads, 6)

    def split(unroll: int) -> Split:
        return Split(unroll, THREADS, 8 if unroll <= 3 or (call.norm and call.interleaved) else 6)

    for unroll in range(1, most + 1):
        if _threads(call, unroll) <= split(unroll).min_blocks * resident:
            return split(unroll)
    return split(min(range(most, most // 2, -1), key=lambda unroll: -(-heads // unroll) * (2 + unroll)))


def _threads(call: Call, unroll: int) -> int:
    """Threads for one pass over all heads, among them those that idle at the end of a warp."""
    lanes = (call.head_dim if call.norm else call.rotary) * call.dtype.itemsize // 16
    groups = call.rows * -(-(call.q.heads + call.k.heads) // unroll)
    return 32 * -(-groups // (MOST_LANES // lanes))


def specialise(call: Call, split: Split) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu file)."""
    macros = dict(rotary_heads.specialise(call, split).macros)
    wide = call.rows * (call.q.heads + call.k.heads) >= 2**31
    return nvrtc.kernel_source(SOURCE, "head_vectors", macros | {"WIDE": wide})
