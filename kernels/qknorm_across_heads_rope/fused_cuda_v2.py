"""The fusion over heads of any number and width in CUDA C++ (`fused_cuda_v2.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from fusebench import kernel
from fusebench.registry import nvrtc

from .._shared.cuda_rows import DTYPE_CODES
from .op import Arguments

SOURCE = Path(__file__).with_suffix(".cu")
MOST_WARPS = 32
REGISTERS, WARPS, BLOCKS = 65536, 64, 32
"""Of a multiprocessor."""
MOST_REGISTERS = 64
"""Of a thread: fewer warps at once, with more registers, were slower wherever it was measured."""
MOST_VECTORS = 8
"""Vectors of 16 bytes that a lane holds of a token."""
TOGETHER = 4
"""Tokens of a block whose warps have one each: blocks of one warp would leave half of a multiprocessor's places for warps empty."""


@kernel(
    "qknorm_across_heads_rope", "fused_cuda", version=2, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a block per token of q and k together, any number of heads; a lane stays in one column of a head; no loop over tokens",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    call.require_gpu(interpreted=False)
    q, k, q_weight, k_weight, cache = call.q, call.k, call.q_weight, call.k_weight, call.cos_sin_cache
    rows, heads, head_dim = q.shape
    if rows == 0:
        return
    q_stride, k_stride, item, device_index = q.stride(0), k.stride(0), q.element_size(), q.device.index
    start = q.data_ptr() | k.data_ptr() | item * (q_stride | k_stride)
    if q_weight is not None and k_weight is not None:
        start |= q_weight.data_ptr() | k_weight.data_ptr()
    launching = _specialise_call(
        rows, heads, k.shape[1], head_dim, q.dtype, cache.dtype, q_weight is not None, start % 16 == 0, cache.data_ptr() % 16 == 0,
        rows > cache.shape[0], device_index,
    )  # fmt: skip
    nvrtc.launch(
        launching.source,
        grid=launching.grid,
        block=launching.threads,
        device_index=device_index,
        arguments=(q, k, q_weight, k_weight, cache, rows, cache.shape[0], q_stride, k_stride, numpy.float32(call.eps)),
    )


class TokenSplit(NamedTuple):
    warps: int
    """Warps that share a token."""
    together: int
    """Tokens of a block; more than one only where each has one warp."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""


class _Launching(NamedTuple):
    source: nvrtc.KernelSource
    grid: int
    threads: int


@functools.lru_cache(maxsize=512)
def _specialise_call(
    rows: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, affine: bool, aligned: bool,
    cache_aligned: bool, samples: bool, device_index: int,
) -> _Launching:  # fmt: skip
    multiprocessors = torch.cuda.get_device_properties(device_index).multi_processor_count
    item = dtype.itemsize
    split = split_heads(heads + kv_heads, head_dim * item // 16, item, rows, multiprocessors)
    source = specialise(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=DTYPE_CODES[dtype], cache_dtype=DTYPE_CODES[cache_dtype], affine=affine,
        aligned=aligned, cache_aligned=cache_aligned, samples=samples, split=split,
    )  # fmt: skip
    return _Launching(source, -(-rows // split.together), 32 * split.warps * split.together)


@functools.cache
def split_heads(heads: int, vectors: int, item_size: int, rows: int, multiprocessors: int) -> TokenSplit:
    """The warps of a token with few idle places for its vectors and many vectors to a lane, of which many are resident.

    The more vectors, the fewer warps wait at a barrier, and the more tokens a multiprocessor holds. Where it has one or two, there is
    nothing else to do meanwhile. Measured on an H200, cold, on 31 shapes of the nightly suite and of seed 8 of random shapes, each with 1
    to 12 warps and 48 to 64 registers: the rule takes 2 % more than the best of these at the mean and 11 % at most, on the nightly suite's
    shapes at most 0.3 %.

    Args:
        heads: of q and k together.
        vectors: of 16 bytes, of a head. A lane that fills no head holds none, so that the others keep to one column.
    """

    def cost(warps: int) -> tuple[float, TokenSplit]:
        each = -(-heads * vectors // (32 * warps // vectors * vectors))
        idle = 32 * warps * each / (heads * vectors)
        # Pairs of vectors take eight registers; what else is alive beside them takes more where 16-bit values are widened.
        registers = min(MOST_REGISTERS, 8 * -(-each // 2) + (40 if item_size == 2 else 32))
        together = TOGETHER if warps == 1 else 1
        threads = 32 * warps * together
        blocks = min(BLOCKS, 32 * WARPS // threads, REGISTERS // (threads * registers))
        split = TokenSplit(warps, together, max(1, blocks))
        if each > MOST_VECTORS:
            return idle + 9, split
        return idle + (0.1 * abs(each - 2) if rows <= 2 * multiprocessors else 0.5 / each), split

    return min(cost(warps) for warps in range(-(-vectors // 32), MOST_WARPS + 1))[1]


def specialise(
    *, heads: int, kv_heads: int, head_dim: int, dtype: int, cache_dtype: int, affine: bool, aligned: bool, cache_aligned: bool,
    samples: bool, split: TokenSplit,
) -> nvrtc.KernelSource:  # fmt: skip
    """The source with one shape's constants (macro names as listed at the top of the .cu file)."""
    return nvrtc.kernel_source(
        SOURCE,
        "qknorm_across_heads_rope",
        {
            "D": (heads + kv_heads) * head_dim, "Q_HEADS": heads, "K_HEADS": kv_heads, "HEAD_DIM": head_dim, "DTYPE": dtype,
            "CACHE_DTYPE": cache_dtype, "LAYER": False, "WARPS": split.warps, "THREADS": 32 * split.warps * split.together,
            "MIN_BLOCKS": split.min_blocks, "SAMPLES": samples, "AFFINE": affine, "ALIGNED": aligned, "CACHE_ALIGNED": cache_aligned,
        },
    )  # fmt: skip
