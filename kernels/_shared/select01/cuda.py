"""Launches select01.cu or select01_stream.cu, compiled by NVRTC for each shape's constants: the CUDA C++ behind the select01 ops."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy
import torch

from fusebench.registry import nvrtc

from ..cuda_rows import (
    DTYPE_CODES,
    ELEMENTS_OF_TWO,
    NO_TENSOR,
    RowSplit,
    at_once,
    grid,
    item_size_of,
    launch_macros,
    split_alone,
    split_row,
)
from ..cuda_stream import (
    DEFAULT_TILE,
    StreamSplit,
    StreamTile,
    registers_beside_vectors,
    ring_memory,
    split_combined,
    split_stream,
    words_of,
)
from .plan import Plan, rows_of

SOURCE = Path(__file__).with_name("select01.cu")
STREAM_SOURCE = Path(__file__).with_name("select01_stream.cu")
INPUTS = 2
"""Rows of activations, an input of `split_row`. The unrounded v of a residual takes the registers of two 16-bit rows. Without a residual,
the values beside each vector (scale, shift, gate, perhaps weight and bias) take as many. For D = 3072 in 16 bits this gives 4 warps per row
and 3 resident blocks, 80 registers and no spill on sm_90; 2 warps per row would take 128 registers, which leaves 16 warps."""


class Dtypes(NamedTuple):
    """Codes of DTYPE_CODES, or NO_TENSOR."""

    x: int
    row: int
    weight: int
    bias: int


Design = Literal["persistent", "alone", "streamed", "combined"]
"""How rows are dealt out and held. select01.cu: a persistent grid, or a block for every row. select01_stream.cu: rows streamed through
shared memory; combined with weight, bias, scale and shift put together."""


def fused(call: Any, design: Design = "persistent", tile: StreamTile = DEFAULT_TILE) -> Any:
    """Either select01 op in one launch on a GPU: (y, gate_out), with a residual (y, v, gate_out).

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    plan = call.checked()
    call.require_gpu(interpreted=False)
    outputs = call.allocate()
    y, gate_out = outputs[0], outputs[-1]
    residual, gate, v = (call.residual, call.residual_gate, outputs[1]) if len(outputs) == 3 else (None, None, None)
    if plan.rows:
        _launch(plan, call.x, residual, gate, call.weight, call.bias, rows_of(call), call.index, y, v, gate_out, call.eps, design, tile)
    return outputs


def _launch(
    plan: Plan,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    residual_gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rows: Sequence[torch.Tensor],
    index: torch.Tensor,
    y: torch.Tensor,
    v: torch.Tensor | None,
    gate_out: torch.Tensor,
    eps: float,
    design: Design,
    tile: StreamTile,
) -> None:
    activations = (x, x if residual is None else residual, x if residual_gate is None else residual_gate)
    strides = tuple(stride for tensor in activations for stride in tensor.stride()[:2])
    starts = functools.reduce(int.__or__, (tensor.data_ptr() for tensor in activations))
    steps = functools.reduce(int.__or__, strides) * x.element_size()
    shared = functools.reduce(int.__or__, (tensor.data_ptr() for tensor in (*rows, weight, bias) if tensor is not None))
    device_index = x.device.index
    specialisation = _specialise_call(
        plan,
        Dtypes(*(NO_TENSOR if tensor is None else DTYPE_CODES[tensor.dtype] for tensor in (x, rows[0], weight, bias))),
        index.element_size(),
        residual is not None,
        (starts | steps) % 16 == 0,
        shared % 16 == 0,
        eps,
        device_index,
        design,
        tile,
    )
    nvrtc.launch(
        specialisation.source,
        grid=specialisation.grid,
        block=specialisation.threads,
        device_index=device_index,
        shared_bytes=specialisation.shared_bytes,
        arguments=(
            *activations, weight, bias, *rows, index, y, v, gate_out,
            *specialisation.arguments, plan.tokens, *strides, *plan.row_strides, *plan.index_strides, specialisation.eps,
        ),
    )  # fmt: skip


class _Specialisation(NamedTuple):
    source: nvrtc.KernelSource
    grid: int
    threads: int
    arguments: tuple[int, ...]
    """The rows of the launch; of a streamed one their `Shares`."""
    eps: numpy.float32
    shared_bytes: int = 0


@functools.lru_cache(maxsize=512)
def _specialise_call(
    plan: Plan,
    dtypes: Dtypes,
    index_bytes: int,
    residual: bool,
    aligned: bool,
    starts_aligned: bool,
    eps: float,
    device_index: int,
    design: Design,
    tile: StreamTile,
) -> _Specialisation:
    """The launch settings that all calls of one shape on one device share."""
    properties = torch.cuda.get_device_properties(device_index)
    multiprocessors = properties.multi_processor_count
    build = functools.partial(specialise, plan, dtypes, index_bytes, residual, aligned, l2_bytes=properties.L2_cache_size)
    shared_aligned = starts_aligned and rows_aligned(plan, dtypes)
    if design in ("streamed", "combined"):
        item_size = item_size_of(dtypes.x)
        # Three of the six rows, and the unrounded v.
        words = words_of(item_size, dtypes.row, dtypes.row, dtypes.row, dtypes.weight, dtypes.bias) + (8 if residual else 0)
        streams = 3 if residual else 1
        memory = ring_memory(device_index, aligned=aligned)
        if design == "combined":
            lanes = 16 // item_size
            # Beside factor and term the gate as it is stored; beside x the two other streams, the unrounded v in their place.
            stream = split_combined(
                plan.hidden, item_size, streams, plan.rows, multiprocessors, memory=memory, sections=(plan.tokens,), selects=True,
                other_registers=registers_beside_vectors(device_index), kept_words=2 * lanes + 4,
                live_words=4 + lanes + (8 if residual else 0), tile=tile,
            )  # fmt: skip
        else:
            stream = split_stream(plan.hidden, item_size, streams, plan.rows, multiprocessors, shared_words=words, memory=memory)
        source = build(shared_aligned, stream)
        return _Specialisation(source, stream.blocks, stream.threads, stream.shares, numpy.float32(eps), stream.shared_bytes)
    if design == "alone":
        split = alone_split(plan.hidden, item_size_of(dtypes.x), plan.rows, multiprocessors, residual=residual)
    else:
        split = split_of(plan, dtypes, multiprocessors)
    source = build(shared_aligned, split)
    return _Specialisation(source, grid(plan.rows, split, multiprocessors), split.threads, (plan.rows,), numpy.float32(eps))


MOST_ALONE = 8
"""Warps of a row without a residual, of which each lane has two vectors: rows of 3072 take six and are 4 to 34 % faster than by three of
four vectors each, rows of 7168 take 14 and are up to 20 % slower than by seven (H200)."""


MOST_THREADS = 1280
"""Threads per multiprocessor, with 48 registers each, for which `alone_split` makes room where a row has a residual. On an H200 304 rows of
6144 take 8.2 us by 1152 threads at once, and 9.1 by two waves; 567 rows of 4456 in float32 20.1 by 1440, and 16.7 by two waves."""


def alone_split(hidden: int, item_size: int, rows: int, multiprocessors: int, *, residual: bool) -> RowSplit:
    """A block for every row."""
    if residual:
        split = split_alone(hidden, item_size, ELEMENTS_OF_TWO * item_size // 16)
        return at_once(split, rows, multiprocessors, most_threads=MOST_THREADS)
    two = split_alone(hidden, item_size, 2)
    return two if two.warps <= MOST_ALONE else split_alone(hidden, item_size, 4)


def split_of(plan: Plan, dtypes: Dtypes, multiprocessors: int) -> RowSplit:
    """The number of warps that share a row of this call."""
    narrow = DTYPE_CODES[torch.float32] not in dtypes
    return split_row(plan.hidden, item_size_of(dtypes.x), INPUTS, plan.rows, multiprocessors, narrow=narrow)


def rows_aligned(plan: Plan, dtypes: Dtypes) -> bool:
    """Whether the strides keep every sample's rows on 16 bytes, given that the first sample's are."""
    return plan.batch == 1 or functools.reduce(int.__or__, plan.row_strides) * item_size_of(dtypes.row) % 16 == 0


def specialise(
    plan: Plan,
    dtypes: Dtypes,
    index_bytes: int,
    residual: bool,
    aligned: bool,
    shared_aligned: bool,
    split: RowSplit | StreamSplit,
    *,
    l2_bytes: int,
) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu files and their headers)."""
    macros: dict[str, int | bool] = {
        "DTYPE": dtypes.x, "LAYER": True, "RESIDUAL": residual, "ROW_DTYPE": dtypes.row, "WEIGHT_DTYPE": dtypes.weight,
        "BIAS_DTYPE": dtypes.bias, "INDEX_BYTES": index_bytes, "ALIGNED": aligned, "SHARED_ALIGNED": shared_aligned,
        **launch_macros(
            plan.batch, plan.rows * plan.hidden * item_size_of(dtypes.x), l2_bytes, read=3 if residual else 1, written=3 if residual else 2
        ),
    }  # fmt: skip
    if isinstance(split, StreamSplit):
        return nvrtc.kernel_source(STREAM_SOURCE, "select01_stream", macros | split.macros(plan.hidden))
    macros |= {
        "D": plan.hidden, "WARPS": split.warps, "THREADS": split.threads, "MIN_BLOCKS": split.min_blocks,
        "ALONE": bool(split.together),
    }  # fmt: skip
    return nvrtc.kernel_source(SOURCE, "select01", macros)
