"""The fusion in CUDA C++ (`fused_cuda.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy
import torch

from fusebench import kernel
from fusebench.errors import KernelArgumentError
from fusebench.registry import nvrtc

from .op import ITEM_SIZES, Arguments, Params

SOURCE = Path(__file__).with_suffix(".cu")
DTYPE_CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
THREADS = 256
MIN_BLOCKS = 4
"""Blocks resident per multiprocessor: 64 registers a thread, the most that still lets 1024 threads be resident."""
MOST_HEADS = 6
"""Heads whose loads a group of lanes has in flight (`UNROLL`).  On an H200, 4096 tokens of 24 heads of 128 in bfloat16: 33.4 us with one,
24.9 us with four, 24.2 us with six; eight need more registers than four resident blocks leave."""


@kernel(
    "qknorm_rope", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="lanes per (token, head), 16-byte loads, shuffles, persistent grid",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    call.require_gpu(interpreted=False)
    q, k, q_weight, k_weight, cos_sin_cache, positions = call.q, call.k, call.q_weight, call.k_weight, call.cos_sin_cache, call.positions
    tokens, q_heads, head_dim = q.shape
    item_size = q.element_size()
    if (reason := _declined(call.layout, cos_sin_cache.shape[1], head_dim, item_size)) is not None:
        raise KernelArgumentError(f"{fused_cuda.id}: argument cos_sin_cache: {reason}; call fused_triton, or dispatch, which picks it")
    q_stride, k_stride = q.stride(0), k.stride(0)
    weights = (0, 0) if q_weight is None or k_weight is None else (q_weight.data_ptr(), k_weight.data_ptr())
    unroll = _unroll(q.device.index, tokens, q_heads, k.shape[1], head_dim * item_size)
    starts = (q.data_ptr(), k.data_ptr(), *weights, q_stride * item_size, k_stride * item_size)
    source = specialise(
        head_dim=head_dim,
        rotary=cos_sin_cache.shape[1],
        q_heads=q_heads,
        k_heads=k.shape[1],
        dtype=DTYPE_CODES[q.dtype],
        cache_dtype=DTYPE_CODES[cos_sin_cache.dtype],
        interleaved=call.layout == "interleaved",
        round_norm=call.round_norm,
        affine=q_weight is not None,
        wide_positions=positions.dtype == torch.int64,
        unroll=unroll,
        aligned=all(start % 16 == 0 for start in starts),
        cache_aligned=cos_sin_cache.data_ptr() % 16 == 0 and cos_sin_cache.shape[1] % 4 == 0,
    )
    if tokens == 0:
        return
    device_index = q.device.index
    nvrtc.launch(
        source,
        grid=_grid(device_index, tokens, q_heads, k.shape[1], head_dim * item_size, unroll),
        block=THREADS,
        device_index=device_index,
        arguments=(
            q, k, q_weight, k_weight, cos_sin_cache, positions,
            numpy.int64(q_stride), numpy.int64(k_stride), numpy.int64(call.position_offset), numpy.int64(tokens), numpy.float32(call.eps),
        ),
    )  # fmt: skip


@functools.cache
def specialise(
    *, head_dim: int, rotary: int, q_heads: int, k_heads: int, dtype: int, cache_dtype: int, interleaved: bool,
    round_norm: bool, affine: bool, wide_positions: bool, aligned: bool, cache_aligned: bool, unroll: int,
) -> nvrtc.KernelSource:  # fmt: skip
    """The source with this shape's constants (macro names as listed at the top of the .cu file)."""
    return nvrtc.kernel_source(
        SOURCE,
        "qknorm_rope",
        {
            "D": head_dim, "R": rotary, "Q_HEADS": q_heads, "K_HEADS": k_heads, "DTYPE": dtype, "CACHE_DTYPE": cache_dtype,
            "INTERLEAVED": interleaved, "ROUND_NORM": round_norm, "AFFINE": affine, "WIDE_POSITIONS": wide_positions,
            "ALIGNED": aligned, "CACHE_ALIGNED": cache_aligned, "UNROLL": unroll, "THREADS": THREADS, "MIN_BLOCKS": MIN_BLOCKS,
        },
    )  # fmt: skip


def _rows_per_block(row_bytes: int) -> int:
    """Rows that a block works on at once: a group of lanes each."""
    lanes = min(32, 1 << (max(1, row_bytes // 16) - 1).bit_length())
    return THREADS // lanes


def _unroll(device_index: int, tokens: int, q_heads: int, k_heads: int, row_bytes: int) -> int:
    """Heads per group: as many as still give every resident block work, at most MOST_HEADS (half of it if rows span two vectors)."""
    resident_rows = torch.cuda.get_device_properties(device_index).multi_processor_count * MIN_BLOCKS * _rows_per_block(row_bytes)
    most = MOST_HEADS if row_bytes <= 512 else MOST_HEADS // 2
    return max(1, min(most, tokens * (q_heads + k_heads) // resident_rows, q_heads))


def _grid(device_index: int, tokens: int, q_heads: int, k_heads: int, row_bytes: int, unroll: int) -> int:
    """Blocks: as many as the GPU holds at once (the grid is persistent), or as the work fills."""
    items = tokens * (-(-q_heads // unroll) + -(-k_heads // unroll))
    resident = torch.cuda.get_device_properties(device_index).multi_processor_count * MIN_BLOCKS
    return min(resident, -(-items // _rows_per_block(row_bytes)))


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return _declined(params.layout, params.rotary, params.head_dim, ITEM_SIZES[params.dtype]) or True


def _declined(layout: str, rotary: int, head_dim: int, item_size: int) -> str | None:
    """Why no specialisation exists, in the order of the source's static_asserts; None when one exists."""
    vector = 16 // item_size
    if layout == "neox":
        apart, leftover = divmod(rotary // 2, vector)
        if leftover:
            return f"rope_dim {rotary}: in the neox layout half of it must be a multiple of {vector} elements (16 bytes)"
        if rotary // vector > 32 and apart % 32:
            return f"rope_dim {rotary} of {head_dim}: a pair's halves would lie in different passes of a warp"
    return None
