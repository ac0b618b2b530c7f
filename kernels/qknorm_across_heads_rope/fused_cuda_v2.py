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
REGISTERS = 65536
"""Of a multiprocessor."""
MOST_VECTORS = 8
"""Vectors of 16 bytes that a lane holds of a token; two fewer if it holds as many of the weights."""
WAVES = 6
"""Times that the blocks fill the GPU: fewer, longer ones would leave multiprocessors idle at the end."""
MOST_TOKENS = 8
"""Tokens of a block, which reads its weights once."""


@kernel(
    "qknorm_across_heads_rope", "fused_cuda", version=2, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a block per token of q and k together, any number of heads; a lane stays in one column of a head, its weights in registers",
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
        device_index,
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
    """Warps of a block, which holds a token."""
    min_blocks: int
    """Blocks resident per multiprocessor, which bounds the registers of a thread."""
    kept: bool
    """Whether lanes keep their weights in registers."""

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Blocks of a launch: one per token, or per few tokens where there are many."""
        tokens = rows // (WAVES * multiprocessors * self.min_blocks)
        return -(-rows // max(1, min(MOST_TOKENS, tokens)))


class _Launching(NamedTuple):
    source: nvrtc.KernelSource
    grid: int
    threads: int


@functools.lru_cache(maxsize=512)
def _specialise_call(
    rows: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, affine: bool, aligned: bool,
    cache_starts: bool, device_index: int,
) -> _Launching:  # fmt: skip
    multiprocessors = torch.cuda.get_device_properties(device_index).multi_processor_count
    item = dtype.itemsize
    split = split_heads(heads + kv_heads, head_dim * item // 16, item, rows, multiprocessors, affine=affine)
    source = specialise(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=DTYPE_CODES[dtype], cache_dtype=DTYPE_CODES[cache_dtype], affine=affine,
        aligned=aligned, cache_aligned=cache_starts and head_dim // 2 * cache_dtype.itemsize % 16 == 0, split=split,
    )  # fmt: skip
    return _Launching(source, split.grid(rows, multiprocessors), 32 * split.warps)


@functools.cache
def split_heads(heads: int, vectors: int, item_size: int, rows: int, multiprocessors: int, *, affine: bool) -> TokenSplit:
    """The warps of a token with few idle places for its vectors and about five vectors to a lane, of which several blocks are resident.

    The more vectors, the fewer warps wait at a barrier, and the more blocks load while another one works. Where a multiprocessor has one or
    two tokens, there is nothing else to do meanwhile.

    Args:
        heads: of q and k together.
        vectors: of 16 bytes, of a head. A lane that fills no head holds none, so that the others keep to one column.
    """
    wanted = 2 if rows <= 2 * multiprocessors else 5
    needed = min(3, -(-rows // multiprocessors))

    def cost(warps: int, kept: bool) -> tuple[float, TokenSplit]:
        each = -(-heads * vectors // (32 * warps // vectors * vectors))
        registers = 4 * each * (2 if kept else 1) + (72 if item_size == 2 else 48) + (8 if affine and not kept else 0)
        resident = REGISTERS // (4 * 32 * registers) * 4  # warps, as many on each of four schedulers
        blocks = min(32, resident // warps)
        idle = 32 * warps * each / (heads * vectors)
        total = idle + 0.1 * abs(each - wanted) + 0.5 * max(0, needed - blocks) + (0.15 if affine and not kept else 0.0)
        if each > MOST_VECTORS - (2 if kept else 0):
            total += 9
        return total, TokenSplit(warps, max(1, blocks), kept)

    return min(cost(warps, kept) for warps in range(-(-vectors // 32), MOST_WARPS + 1) for kept in {affine, False})[1]


def specialise(
    *, heads: int, kv_heads: int, head_dim: int, dtype: int, cache_dtype: int, affine: bool, aligned: bool, cache_aligned: bool,
    split: TokenSplit,
) -> nvrtc.KernelSource:  # fmt: skip
    """The source with one shape's constants (macro names as listed at the top of the .cu file)."""
    return nvrtc.kernel_source(
        SOURCE,
        "qknorm_across_heads_rope",
        {
            "D": (heads + kv_heads) * head_dim, "Q_HEADS": heads, "K_HEADS": kv_heads, "HEAD_DIM": head_dim, "DTYPE": dtype,
            "CACHE_DTYPE": cache_dtype, "LAYER": False, "WARPS": split.warps, "THREADS": 32 * split.warps, "MIN_BLOCKS": split.min_blocks,
            "AFFINE": affine, "KEPT": split.kept, "ALIGNED": aligned, "CACHE_ALIGNED": cache_aligned,
        },
    )  # fmt: skip
