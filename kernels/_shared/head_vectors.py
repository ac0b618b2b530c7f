"""Launches head_vectors.cu, compiled by NVRTC for each shape's constants: rotated heads with a vector of 16 bytes to each lane."""

from __future__ import annotations

import functools

import torch

from fusebench.registry import nvrtc

from . import rotary_heads
from .rotary_heads import RESIDENT_THREADS, Call, Split

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
    """As many heads per lane as still fill the GPU several times over; of about as many, those with the fewest instructions.

    A lane's addresses, cosines and sines take about as many instructions as two heads, and those of a head that a token lacks are lost.
    Pairs that lie no whole vectors apart have cosines and sines one by one, and take more registers.
    """
    heads, resident = call.q.heads + call.k.heads, multiprocessors * RESIDENT_THREADS
    threads = _threads(call, 1)
    most = min(heads, 1 if threads < resident else 2 if threads < 3 * resident else 4 if threads < 16 * resident else 6)
    unroll = min(range(most, most // 2, -1), key=lambda unroll: -(-heads // unroll) * (2 + unroll))
    one_run = call.rotary // 2 % (16 // call.dtype.itemsize // (2 if call.interleaved else 1)) == 0
    blocks = 8 if unroll <= 3 else 6 if unroll == 4 or call.interleaved else 5
    return Split(unroll, 128, blocks if one_run else 6 if unroll <= 3 else 5)


def _threads(call: Call, unroll: int) -> int:
    """Threads for one pass over all heads, among them those that idle at the end of a warp."""
    lanes = (call.head_dim if call.norm else call.rotary) * call.dtype.itemsize // 16
    groups = call.rows * -(-(call.q.heads + call.k.heads) // unroll)
    return 32 * -(-groups // (MOST_LANES // lanes))


def specialise(call: Call, split: Split) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu file)."""
    macros = dict(rotary_heads.specialise(call, split).macros)
    wide = call.rows * (call.q.heads + call.k.heads) >= 2**31
    return nvrtc.kernel_source(SOURCE, "head_vectors", macros | {"WIDE": wide, "LAYER": False, "WARPS": 1})
