"""Launches modulated_norm.cu, modulated_rows.cu or modulated_stream.cu, compiled for each shape: norm_scale_shift and its residual form."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, NamedTuple

import numpy
import torch

from fusebench.registry import nvrtc

from .cuda_rows import (
    DTYPE_CODES,
    ELEMENTS_OF_TWO,
    NO_TENSOR,
    RowSplit,
    addressing_code,
    at_once,
    grid,
    item_size_of,
    launch_macros,
    split_ahead,
    split_alone,
    split_neighbours,
    strides_aligned,
)
from .cuda_stream import (
    DEFAULT_TILE,
    StreamSplit,
    StreamTile,
    registers_beside_vectors,
    ring_memory,
    section_of,
    split_combined,
    split_stream,
    words_of,
)
from .norm_arguments import Plan

SOURCE = Path(__file__).with_name("modulated_norm.cu")
ROWS_SOURCE = Path(__file__).with_name("modulated_rows.cu")
STREAM_SOURCE = Path(__file__).with_name("modulated_stream.cu")


Design = Literal["persistent", "alone", "neighbours", "streamed", "combined"]
"""How rows are dealt out and held. modulated_norm.cu: a persistent grid. modulated_rows.cu: a block for every row, or for a few
neighbouring ones. modulated_stream.cu: rows streamed through shared memory; combined with weight, bias, scale and shift put together."""


class Dtypes(NamedTuple):
    """Codes of DTYPE_CODES, or NO_TENSOR."""

    x: int
    gate: int
    weight: int
    bias: int
    scale: int
    shift: int


def launch(
    plan: Plan,
    x: torch.Tensor,
    *,
    y: torch.Tensor,
    norm: str,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    scale: torch.Tensor,
    shift: torch.Tensor,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    design: Design = "persistent",
    tile: StreamTile = DEFAULT_TILE,
) -> None:
    """One launch over x `[B, S, D]` on a GPU; y and v are contiguous outputs, v is needed with residual only."""
    if plan.rows == 0:
        return
    other = x if residual is None else residual
    x_strides, other_strides, item = x.stride(), other.stride(), x.element_size()
    tensors = (x, gate, weight, bias, scale, shift)
    pointers = tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    rows_start = pointers[0] | other.data_ptr() | item * (x_strides[0] | x_strides[1] | other_strides[0] | other_strides[1])
    shared_start = functools.reduce(int.__or__, pointers[1:])
    device_index = x.device.index
    specialisation = _specialise_call(
        plan,
        Dtypes(*(NO_TENSOR if tensor is None else DTYPE_CODES[tensor.dtype] for tensor in tensors)),
        norm == "layer",
        residual is not None,
        rows_start % 16 == 0,
        shared_start % 16 == 0,
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
            x, other, *tensors[1:], y, v,
            *specialisation.arguments, plan.tokens, x_strides[0], x_strides[1], other_strides[0], other_strides[1],
            *specialisation.broadcasts, specialisation.eps,
        ),
    )  # fmt: skip


class _Specialisation(NamedTuple):
    source: nvrtc.KernelSource
    grid: int
    threads: int
    arguments: tuple[int, ...]
    """The rows of the launch; of a streamed one their `Shares`."""
    broadcasts: tuple[int, ...]
    eps: numpy.float32
    shared_bytes: int


@functools.lru_cache(maxsize=512)
def _specialise_call(
    plan: Plan,
    dtypes: Dtypes,
    layer: bool,
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
    build = functools.partial(specialise, plan, dtypes, layer, residual, aligned, l2_bytes=properties.L2_cache_size)
    item_size = item_size_of(dtypes.x)
    narrow = item_size == 2 and not any(code == DTYPE_CODES[torch.float32] for code in dtypes) and dtypes.weight == NO_TENSOR
    inputs = 2 if residual else 1
    rows = ((plan.gate, dtypes.gate), (plan.scale, dtypes.scale), (plan.shift, dtypes.shift))
    shared_aligned = starts_aligned and all(strides_aligned(broadcast, code) for broadcast, code in rows)
    broadcasts = tuple(number for broadcast in (plan.gate or plan.scale, plan.scale, plan.shift) for number in broadcast[:3])
    if design in ("streamed", "combined"):
        memory = ring_memory(device_index, aligned=aligned)
        codes = [code for broadcast, code in rows if broadcast is not None and broadcast.channel_stride]
        words = words_of(item_size, *codes, dtypes.weight, dtypes.bias)
        if design == "combined":
            lanes = 16 // item_size
            scalar = dtypes.weight == NO_TENSOR and not plan.scale.channel_stride and not plan.shift.channel_stride
            gate = words_of(item_size, dtypes.gate) if plan.gate is not None and plan.gate.channel_stride else 0
            stream = split_combined(
                plan.hidden, item_size, inputs, plan.rows, multiprocessors, memory=memory,
                sections=(section_of(plan.rows, plan.tokens, *(one for one, _ in rows if one is not None)), plan.tokens),
                other_registers=registers_beside_vectors(device_index), kept_words=gate + (0 if scalar else 2 * lanes),
                live_words=4 * inputs + lanes, tile=tile,
            )  # fmt: skip
        else:
            stream = split_stream(plan.hidden, item_size, inputs, plan.rows, multiprocessors, shared_words=words, memory=memory)
        source = build(shared_aligned, stream)
        blocks, threads, shared_bytes = stream.blocks, stream.threads, stream.shared_bytes
        arguments: tuple[int, ...] = stream.shares
    else:
        if design == "persistent":
            split = split_ahead(plan.hidden, item_size, inputs, plan.rows, multiprocessors, narrow=narrow)
        elif design == "alone":
            split = alone_split(plan.hidden, item_size, inputs, plan.rows, multiprocessors)
        else:
            split = split_neighbours(plan.hidden, item_size, inputs)
        source = build(shared_aligned, split)
        blocks, threads, arguments, shared_bytes = grid(plan.rows, split, multiprocessors), split.threads, (plan.rows,), 0
    return _Specialisation(source, blocks, threads, arguments, broadcasts, numpy.float32(eps), shared_bytes)


def alone_split(hidden: int, item_size: int, inputs: int, rows: int, multiprocessors: int) -> RowSplit:
    """A block for every row. A lane has `ELEMENTS_OF_TWO` of each of two inputs. Of one input it has four vectors, but for launches whose
    blocks are all resident with two: on an H200 these make 128 rows of 4096 take 2.2 us instead of 2.8, and 8308 rows of 3072 25.5 instead
    of 24.0."""
    if inputs > 1:
        return at_once(split_alone(hidden, item_size, ELEMENTS_OF_TWO * item_size // 16), rows, multiprocessors)
    two = split_alone(hidden, item_size, 2)
    return two if rows <= multiprocessors * two.min_blocks else split_alone(hidden, item_size, 4)


def specialise(
    plan: Plan,
    dtypes: Dtypes,
    layer: bool,
    residual: bool,
    aligned: bool,
    shared_aligned: bool,
    split: RowSplit | StreamSplit,
    *,
    l2_bytes: int,
) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu files and their headers)."""
    inputs = 2 if residual else 1  # and outputs
    macros: dict[str, int | bool] = {
        "DTYPE": dtypes.x, "LAYER": layer, "RESIDUAL": residual, "GATE": addressing_code(plan.gate),
        "SCALE": addressing_code(plan.scale), "SHIFT": addressing_code(plan.shift),
        # A dtype that nothing reads still has to be one.
        "GATE_DTYPE": max(0, dtypes.gate), "SCALE_DTYPE": dtypes.scale, "SHIFT_DTYPE": dtypes.shift,
        "WEIGHT_DTYPE": dtypes.weight, "BIAS_DTYPE": dtypes.bias, "ALIGNED": aligned, "SHARED_ALIGNED": shared_aligned,
        **launch_macros(plan.batch, plan.rows * plan.hidden * item_size_of(dtypes.x), l2_bytes, read=inputs, written=inputs),
    }  # fmt: skip
    if isinstance(split, StreamSplit):
        return nvrtc.kernel_source(STREAM_SOURCE, "modulated_stream", macros | split.macros(plan.hidden))
    macros |= {"D": plan.hidden, "WARPS": split.warps, "THREADS": split.threads, "MIN_BLOCKS": split.min_blocks}
    if split.together:
        return nvrtc.kernel_source(ROWS_SOURCE, "modulated_rows", macros | {"TOGETHER": split.together})
    return nvrtc.kernel_source(SOURCE, "modulated_norm", macros | {"PREFETCH": split.prefetch})
