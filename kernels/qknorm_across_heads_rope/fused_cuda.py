"""The fusion in CUDA C++ (`fused_cuda.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from fusebench import kernel
from fusebench.errors import KernelArgumentError
from fusebench.registry import nvrtc

from .._shared.cuda_rows import DTYPE_CODES, THREADS, RowSplit, grid, split_ahead, split_row
from .op import Arguments, Params

SOURCE = Path(__file__).with_suffix(".cu")


@kernel(
    "qknorm_across_heads_rope", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a few warps per token, q and k in registers, one barrier, 16-byte loads, next token prefetched, persistent grid",
)  # fmt: skip
def fused_cuda(call: Arguments) -> None:
    """Overwrites q and k."""
    call.checked()
    call.require_gpu(interpreted=False)
    q, k, q_weight, k_weight, cache = call.q, call.k, call.q_weight, call.k_weight, call.cos_sin_cache
    rows, heads, head_dim = q.shape
    if (reason := _declined(heads, k.shape[1])) is not None:
        raise KernelArgumentError(f"{fused_cuda.id}: argument k: {reason}; call fused_triton, or dispatch, which picks it")
    if rows == 0:
        return
    q_stride, k_stride, item, device_index = q.stride(0), k.stride(0), q.element_size(), q.device.index
    start = q.data_ptr() | k.data_ptr() | item * (q_stride | k_stride)
    if q_weight is not None and k_weight is not None:
        start |= q_weight.data_ptr() | k_weight.data_ptr()
    launching = _specialise_call(
        rows, heads, head_dim, q.dtype, cache.dtype, q_weight is not None, start % 16 == 0, cache.data_ptr() % 16 == 0, device_index
    )
    nvrtc.launch(
        launching.source,
        grid=launching.grid,
        block=THREADS,
        device_index=device_index,
        arguments=(q, k, q_weight, k_weight, cache, rows, cache.shape[0], q_stride, k_stride, numpy.float32(call.eps)),
    )


class _Launching(NamedTuple):
    source: nvrtc.KernelSource
    grid: int


@functools.lru_cache(maxsize=512)
def _specialise_call(
    rows: int, heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, affine: bool, aligned: bool, cache_starts: bool,
    device_index: int,
) -> _Launching:  # fmt: skip
    multiprocessors = torch.cuda.get_device_properties(device_index).multi_processor_count
    split = split_token(heads * head_dim, head_dim, dtype.itemsize, rows, multiprocessors)
    source = specialise(
        heads=heads, head_dim=head_dim, dtype=DTYPE_CODES[dtype], cache_dtype=DTYPE_CODES[cache_dtype], affine=affine, aligned=aligned,
        cache_aligned=cache_starts, split=split,
    )  # fmt: skip
    return _Launching(source, grid(rows, split, multiprocessors))


def split_token(width: int, head_dim: int, item_size: int, rows: int, multiprocessors: int) -> RowSplit:
    """The warps of a token, and whether it is prefetched.

    A lane whose vectors lie at different columns of a head needs cosines and sines of each: these registers are the next token's.
    """
    split = split_ahead(width, item_size, 2, rows, multiprocessors, narrow=False)
    one_column = 32 * split.warps * 16 // item_size % head_dim == 0
    return split if one_column or not split.prefetch else split_row(width, item_size, 2, rows, multiprocessors, narrow=False)


def specialise(
    *, heads: int, head_dim: int, dtype: int, cache_dtype: int, affine: bool, aligned: bool, cache_aligned: bool, split: RowSplit
) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu file and of row_norm.cuh)."""
    return nvrtc.kernel_source(
        SOURCE,
        "qknorm_across_heads_rope",
        {
            "D": heads * head_dim, "HEAD_DIM": head_dim, "DTYPE": dtype, "CACHE_DTYPE": cache_dtype, "LAYER": False, "WARPS": split.warps,
            "THREADS": THREADS, "MIN_BLOCKS": split.min_blocks, "PREFETCH": split.prefetch, "AFFINE": affine, "ALIGNED": aligned,
            "CACHE_ALIGNED": cache_aligned,
        },
    )  # fmt: skip


@fused_cuda.supports
def _(params: Params) -> bool | str:
    return _declined(params.heads, params.key_heads) or True


def _declined(heads: int, kv_heads: int) -> str | None:
    """Why no specialisation exists; None when one exists."""
    return None if heads == kv_heads else f"{kv_heads} heads of k beside {heads} of q: the rows of a token must be equally wide"
