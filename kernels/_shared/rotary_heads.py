"""Launches rotary_heads.cu, compiled by NVRTC for each shape's constants: the CUDA C++ behind qknorm_rope and rotary_embedding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from fusebench.registry import nvrtc

from .cuda_rows import DTYPE_CODES

SOURCE = Path(__file__).with_name("rotary_heads.cu")
THREADS = 128
"""Of a block."""


class Heads(NamedTuple):
    """Heads of q or k, packed within a token; strides in elements."""

    heads: int
    batch_stride: int
    token_stride: int


class Call(NamedTuple):
    """What decides a launch's code and grid."""

    head_dim: int
    rotary: int
    q: Heads
    k: Heads
    """No heads where there is no k."""
    rows: int
    """Tokens of all samples."""
    tokens: int
    """Tokens of one sample."""
    dtype: torch.dtype
    cache_dtype: torch.dtype
    interleaved: bool
    norm: bool
    round_norm: bool
    affine: bool
    position_bytes: int
    """0 where a token's position is its place in its sample."""
    joint: bool
    aligned: bool
    """Whether q, k and the weights start on 16 bytes."""
    cache_aligned: bool


class Split(NamedTuple):
    unroll: int
    """Heads of one token whose loads a lane has in flight, two vectors of 16 bytes each."""
    threads: int
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""


def declined(layout: str, rotary: int, head_dim: int, item_size: int, *, norm: bool) -> str | None:
    """Why no specialisation exists, in the order of the source's static_asserts; None when one exists."""
    vector = 16 // item_size
    if rotary % vector:
        return f"rope_dim {rotary}: it must be a multiple of {vector} elements (16 bytes)"
    if layout == "neox" and rotary // 2 % vector:
        return f"rope_dim {rotary}: in the neox layout half of it must be a multiple of {vector} elements (16 bytes)"
    if norm and head_dim * item_size > 1024:
        return f"head_dim {head_dim}: a warp holds at most 1024 bytes of a head"
    return None


def launch(
    call: Call,
    q: torch.Tensor,
    k: torch.Tensor | None,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    cosines: torch.Tensor,
    sines: torch.Tensor | None,
    positions: torch.Tensor | None,
    *,
    position_offset: int,
    eps: float,
    specialised: Callable[[Call, int], tuple[nvrtc.KernelSource, int, int]] | None = None,
) -> None:
    """One launch that overwrites q and k.

    Args:
        specialised: source, blocks and threads for a call on a device; those of rotary_heads.cu if None.
    """
    if call.rows == 0:
        return
    device_index = q.device.index
    source, grid, threads = (specialised or _specialise_call)(call, device_index)
    nvrtc.launch(
        source,
        grid=grid,
        block=threads,
        device_index=device_index,
        arguments=(
            q, k, q_weight, k_weight, cosines, sines, positions, call.rows, call.tokens,
            call.q.batch_stride, call.q.token_stride, call.k.batch_stride, call.k.token_stride, position_offset, numpy.float32(eps),
        ),
    )  # fmt: skip


@functools.lru_cache(maxsize=512)
def _specialise_call(call: Call, device_index: int) -> tuple[nvrtc.KernelSource, int, int]:
    """Source, blocks and threads of a block."""
    multiprocessors = torch.cuda.get_device_properties(device_index).multi_processor_count
    split = split_heads(call, multiprocessors)
    return specialise(call, split), -(-_lanes(call, split.unroll) // split.threads), split.threads


def split_heads(call: Call, multiprocessors: int) -> Split:
    """One head to a lane, or two where these share their cosines and sines at no cost in warps.

    Measured on an H200, cold, on the shapes of the nightly suite and of seed 8 of random shapes with one to four heads to a lane. One is
    best for most: heads of 80 and 96 take 5 to 21 % less time than with two. Two are 2 to 7 % better for whole heads of 128 in 16 bits if
    they are interleaved, level or better without the norm, and better by up to 15 % where with two all blocks are resident at once. Of 15
    heads a lane lacks one: 7 % slower.
    A persistent grid is no faster.
    """
    resident = THREADS * multiprocessors
    if max(call.q.heads, call.k.heads) == 1 or _lanes(call, 1) <= 8 * resident:
        return Split(1, THREADS, 8)
    if _lanes(call, 2) <= 6 * resident:
        return Split(2, THREADS, 6)
    even = call.q.heads % 2 == call.k.heads % 2 == 0
    whole = even and call.dtype.itemsize == 2 and call.rotary == call.head_dim >= 128
    if whole and not call.norm:
        return Split(2, THREADS, 6)
    return Split(2 if whole and call.interleaved else 1, THREADS, 8)


def _lanes(call: Call, unroll: int) -> int:
    """Threads for one pass over all heads, among them those that idle at the end of a warp."""
    vectors = (call.head_dim if call.norm else call.rotary) * call.dtype.itemsize // 16
    each = -(-vectors // 2)
    groups = call.rows * (-(-call.q.heads // unroll) + -(-call.k.heads // unroll))
    return 32 * -(-groups // (32 // each)) if call.norm else groups * each


def specialise(call: Call, split: Split) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu file)."""
    item_size = call.dtype.itemsize
    strides = call.q.batch_stride | call.q.token_stride | call.k.batch_stride | call.k.token_stride
    return nvrtc.kernel_source(
        SOURCE,
        "rotary_heads",
        {
            "D": call.head_dim, "R": call.rotary, "Q_HEADS": call.q.heads, "K_HEADS": call.k.heads, "DTYPE": DTYPE_CODES[call.dtype],
            "LAYER": False, "WARPS": 1,
            "CACHE_DTYPE": DTYPE_CODES[call.cache_dtype], "INTERLEAVED": call.interleaved, "NORM": call.norm, "ROUND_NORM": call.round_norm,
            "AFFINE": call.affine, "POSITION_BYTES": call.position_bytes, "JOINT": call.joint,
            "ALIGNED": call.aligned and strides * item_size % 16 == 0,
            "CACHE_ALIGNED": call.cache_aligned,
            "SAMPLES": call.rows > call.tokens, "WIDE": _lanes(call, 1) >= 2**31,
            "UNROLL": split.unroll, "THREADS": split.threads, "MIN_BLOCKS": split.min_blocks,
        },
    )  # fmt: skip
