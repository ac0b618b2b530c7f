"""The CUDA C++ of both norm_tanh ops: launches norm_tanh.cu, norm_tanh_stream.cu or norm_tanh_tables.cu, compiled for each shape."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy
import torch

from fusebench.registry import nvrtc

from ..cuda_rows import DTYPE_CODES, NO_TENSOR, addressing_code, item_size_of, launch_macros, strides_aligned
from ..cuda_stream import (
    DEFAULT_TILE,
    LEAST_NEIGHBOURS,
    StreamSplit,
    StreamTile,
    even_shares,
    registers_beside_vectors,
    ring_memory,
    section_of,
    split_combined,
    split_stream,
    words_of,
)
from ..cuda_tables import TEAM_WARPS, TableSplit, shared_limit, split_tables
from ..modulation import ROW, Broadcast
from .plan import TanhPlan, is_shifted
from .tiles import RowWarps, spread_row

if TYPE_CHECKING:
    from .params import NormTanhParams

SOURCE = Path(__file__).with_name("norm_tanh.cu")
STREAM_SOURCE = Path(__file__).with_name("norm_tanh_stream.cu")
TABLE_SOURCE = Path(__file__).with_name("norm_tanh_tables.cu")
MOST_TABLE_VECTORS = {(1, 2): 4, (2, 2): 4, (3, 2): 3, (1, 4): 6, (2, 4): 5}
"""Vectors that a lane holds of a row beside tables, by streams and the bytes of an element: more spill on sm_90 with 80 registers."""
WARPS_OF_OWN_SCALES = 20
"""Warps of a block beside tables where each row loads a scale2 of its own: 24 spill on sm_90."""


Design = Literal["persistent", "streamed", "combined", "tabled"]
"""How rows are dealt out and held. norm_tanh.cu: a persistent grid. norm_tanh_stream.cu: rows streamed through shared memory; combined
with what rows share put together. norm_tanh_tables.cu: beside tables of that, where rows start on 16 bytes and the tables fit into
shared memory; else as combined."""


class Dtypes(NamedTuple):
    """Codes of DTYPE_CODES, or NO_TENSOR."""

    x: int
    residual: int
    gate: int
    weight: int
    bias: int
    weight2: int
    bias2: int
    scale2: int


def launch(
    plan: TanhPlan,
    x: torch.Tensor,
    *,
    y: torch.Tensor,
    norm: str,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor,
    gate: torch.Tensor,
    y2: torch.Tensor | None = None,
    weight2: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    scale2: torch.Tensor | None = None,
    design: Design = "persistent",
    tile: StreamTile = DEFAULT_TILE,
) -> None:
    """One launch over x `[B, S, D]` on a GPU; y and y2 are contiguous outputs; give both y2 and scale2 or neither."""
    if plan.rows == 0:
        return
    tensors = (x, residual, gate, weight, bias, weight2, bias2, scale2)
    starts = tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    device_index = x.device.index
    specialisation = _specialise_call(
        plan,
        Dtypes(*(NO_TENSOR if tensor is None else DTYPE_CODES[tensor.dtype] for tensor in tensors)),
        norm == "layer",
        (x.stride(0), x.stride(1)),
        starts[0] % 16 == 0,
        starts[1] % 16 == 0,
        functools.reduce(int.__or__, starts[2:]) % 16 == 0,
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
            *tensors, y, y2, *specialisation.arguments, plan.tokens, x.stride(0), x.stride(1), *specialisation.broadcasts,
            specialisation.eps,
        ),
    )  # fmt: skip


class _Specialisation(NamedTuple):
    source: nvrtc.KernelSource
    grid: int
    threads: int
    arguments: tuple[int, ...]
    """The rows of the launch; of a streamed one their `Shares`; with tables the first two of these, and the rows of a section."""
    broadcasts: tuple[int, ...]
    eps: numpy.float32
    shared_bytes: int = 0


@functools.lru_cache(maxsize=512)
def _specialise_call(
    plan: TanhPlan,
    dtypes: Dtypes,
    layer: bool,
    x_strides: tuple[int, int],
    x_aligned: bool,
    residual_aligned: bool,
    shared_aligned: bool,
    eps: float,
    device_index: int,
    design: Design,
    tile: StreamTile,
) -> _Specialisation:
    """The launch settings that all calls of one shape on one device share."""
    properties = torch.cuda.get_device_properties(device_index)
    multiprocessors = properties.multi_processor_count
    build = functools.partial(specialise, plan, dtypes, layer, l2_bytes=properties.L2_cache_size)
    x_aligned = x_aligned and all(stride * item_size_of(dtypes.x) % 16 == 0 for stride in x_strides)
    residual_aligned = residual_aligned and strides_aligned(plan.residual, dtypes.residual)
    shared_aligned = shared_aligned and strides_aligned(plan.gate, dtypes.gate) and strides_aligned(plan.scale2, dtypes.scale2)
    item_size = item_size_of(dtypes.x)
    own_residual, own = own_items((plan.residual, dtypes.residual)), own_items(*beside(plan, dtypes))
    rows_aligned = x_aligned and (residual_aligned or not own_residual) and (shared_aligned or own == own_residual)
    shared_aligned = shared_aligned and (residual_aligned or is_stream(plan, dtypes))
    broadcasts = tuple(number for broadcast in (plan.residual, plan.gate, plan.scale2 or plan.gate) for number in broadcast[:3])
    if design == "tabled" and rows_aligned:
        shared = [plan.gate, *(one for one in (plan.residual, plan.scale2) if one is not None and is_shared(plan, one))]
        section = section_of(plan.rows, plan.tokens, *shared)
        streams = 1 + own_residual // item_size
        tables = split_tables(
            plan.hidden, item_size, streams, plan.rows, multiprocessors, shared_limit(device_index), section_rows=section,
            most_vectors=MOST_TABLE_VECTORS[streams, item_size],
            most_warps=TEAM_WARPS if plan.scale2 is None or is_shared(plan, plan.scale2) else WARPS_OF_OWN_SCALES,
            kinds=table_kinds(
                shared=is_shared(plan, plan.residual), merged=_is_merged(plan, dtypes, layer=layer), bias=dtypes.bias != NO_TENSOR,
                second=plan.scale2 is not None, bias2=dtypes.bias2 != NO_TENSOR,
            ),
        )  # fmt: skip
        if tables is not None:
            blocks = tables.grid(plan.rows, multiprocessors)
            return _Specialisation(
                build(aligned=True, shared_aligned=shared_aligned, split=tables), blocks, tables.threads,
                (*even_shares(plan.rows, blocks)[:2], section), broadcasts, numpy.float32(eps), tables.shared_bytes,
            )  # fmt: skip
    if design == "persistent":
        spread = spread_row(plan.hidden, item_size, plan.rows, multiprocessors, narrow=is_narrow(dtypes))
        return _Specialisation(
            build(aligned=rows_aligned, shared_aligned=shared_aligned, split=spread), spread.grid(plan.rows, multiprocessors),
            spread.threads, (plan.rows,), broadcasts, numpy.float32(eps),
        )  # fmt: skip
    streams = 1 + own // item_size
    memory = ring_memory(device_index, aligned=rows_aligned)
    alike = all(dtype == dtypes.x for one, dtype in beside(plan, dtypes) if one is not None and is_own(one))
    if design == "streamed":
        # The tanh of the gates is kept in float32.
        words = 8 + words_of(item_size, dtypes.weight, dtypes.bias, dtypes.weight2, dtypes.bias2, dtypes.scale2)
        split = split_stream(plan.hidden, item_size, streams, plan.rows, multiprocessors, shared_words=words, memory=memory, alike=alike)
    else:
        values = [one for one in (plan.residual, plan.gate, plan.scale2) if one is not None and is_shared(plan, one)]
        section = section_of(plan.rows, plan.tokens, *values)
        split = split_combined(
            plan.hidden, item_size, streams, plan.rows, multiprocessors, memory=memory, alike=alike, sections=(section, plan.tokens),
            other_registers=registers_beside_vectors(device_index), kept_words=_kept_words(plan, dtypes, item_size, layer=layer),
            live_words=4 * streams + 16 // item_size, tile=tile,
        )  # fmt: skip
    return _Specialisation(
        build(aligned=rows_aligned, shared_aligned=shared_aligned, split=split), split.blocks, split.threads, split.shares, broadcasts,
        numpy.float32(eps), split.shared_bytes,
    )  # fmt: skip


def specialise(
    plan: TanhPlan,
    dtypes: Dtypes,
    layer: bool,
    *,
    aligned: bool,
    shared_aligned: bool,
    split: RowWarps | StreamSplit | TableSplit,
    l2_bytes: int,
) -> nvrtc.KernelSource:
    """The source with one shape's constants (macro names as listed at the top of the .cu files and their headers)."""
    item_size = item_size_of(dtypes.x)
    macros: dict[str, int | bool] = {
        "DTYPE": dtypes.x, "LAYER": layer, "SECOND": plan.scale2 is not None,
        "RESIDUAL": addressing_code(plan.residual), "GATE": addressing_code(plan.gate),
        # An addressing and a dtype that nothing reads still have to be some.
        "SCALE2": addressing_code(plan.scale2 or plan.gate), "SCALE2_DTYPE": max(0, dtypes.scale2),
        "RESIDUAL_DTYPE": dtypes.residual, "GATE_DTYPE": dtypes.gate, "WEIGHT_DTYPE": dtypes.weight, "BIAS_DTYPE": dtypes.bias,
        "WEIGHT2_DTYPE": dtypes.weight2, "BIAS2_DTYPE": dtypes.bias2, "ALIGNED": aligned, "SHARED_ALIGNED": shared_aligned,
        "SHIFTED": is_shifted(plan, layer=layer),
        **launch_macros(
            plan.batch, plan.rows * plan.hidden * item_size, l2_bytes, written=1 if plan.scale2 is None else 2,
            read=1 + own_items(*beside(plan, dtypes)) // item_size,
        ),
    }  # fmt: skip
    if isinstance(split, RowWarps):
        macros |= {
            "D": plan.hidden, "WARPS": split.warps, "THREADS": split.threads, "MIN_BLOCKS": split.min_blocks, "PREFETCH": split.prefetch,
            "STREAM": is_stream(plan, dtypes),
        }  # fmt: skip
        return nvrtc.kernel_source(SOURCE, "norm_tanh", macros)
    scale2 = plan.scale2
    macros |= {
        **split.macros(plan.hidden), "RESIDUAL_OWN": is_own(plan.residual), "MERGED": _is_merged(plan, dtypes, layer=layer),
        "SCALE2_SHARED": scale2 is not None and is_shared(plan, scale2),
    }  # fmt: skip
    if isinstance(split, TableSplit):
        return nvrtc.kernel_source(TABLE_SOURCE, "norm_tanh_tables", macros | {"RESIDUAL_SHARED": is_shared(plan, plan.residual)})
    macros |= {"GATE_OWN": is_own(plan.gate), "SCALE2_OWN": scale2 is not None and is_own(scale2)}
    return nvrtc.kernel_source(STREAM_SOURCE, "norm_tanh_stream", macros)


def is_stream(plan: TanhPlan, dtypes: Dtypes) -> bool:
    """Whether the residual has a row for every row of x, in x's dtype, that is read once."""
    return is_own(plan.residual) and (plan.batch == 1 or plan.residual.batch_stride != 0) and dtypes.residual == dtypes.x


def is_own(values: Broadcast) -> bool:
    """Whether there is a row of values for every token."""
    return values.addressing == ROW and values.rows_per_group == 1 and values.group_stride != 0


def beside(plan: TanhPlan, dtypes: Dtypes) -> tuple[tuple[Broadcast | None, int], ...]:
    """What each row of x may take beside weights and biases, each with its dtype's code."""
    return (plan.residual, dtypes.residual), (plan.gate, dtypes.gate), (plan.scale2, dtypes.scale2)


def own_items(*values: tuple[Broadcast | None, int]) -> int:
    """Bytes of an element of all those values, each with its dtype's code, of which there is a row for every token."""
    return sum(item_size_of(dtype) for one, dtype in values if one is not None and is_own(one))


def is_shared(plan: TanhPlan, values: Broadcast) -> bool:
    """Whether so many neighbouring rows take the same values that these are worth combining."""
    return values.addressing != ROW or section_of(plan.rows, plan.tokens, values) >= LEAST_NEIGHBOURS


def is_merged(*, shared: bool, bias: bool, float32: bool, shifted: bool) -> bool:
    """Whether the residual is made part of what neighbouring rows share: of what is added to the normalised row times its factor.

    With a bias it is rounded once more then. That shows in float32. In 16 bits some 30 of a million elements, which lie near a tie, are
    rounded the other way, which a second layer norm shows where one residual value is far larger than the gated norm.

    Args:
        shared: whether neighbouring rows take the same residual.
        float32: whether x is.
        shifted: as `is_shifted` says.
    """
    return shared and not (bias and (float32 or shifted))


def _is_merged(plan: TanhPlan, dtypes: Dtypes, *, layer: bool) -> bool:
    return is_merged(
        shared=is_shared(plan, plan.residual), bias=dtypes.bias != NO_TENSOR, float32=dtypes.x == DTYPE_CODES[torch.float32],
        shifted=is_shifted(plan, layer=layer),
    )  # fmt: skip


def _kept_words(plan: TanhPlan, dtypes: Dtypes, item_size: int, *, layer: bool) -> int:
    """Registers per vector for what rows share, where it is put together."""
    lanes = 16 // item_size
    own_gate = is_own(plan.gate)
    merged = not own_gate and _is_merged(plan, dtypes, layer=layer)
    line = lanes * (2 if merged or dtypes.bias != NO_TENSOR else 1)
    words = words_of(item_size, dtypes.weight, dtypes.bias) if own_gate else line
    if not merged and not is_own(plan.residual):
        words += words_of(item_size, dtypes.residual)
    if plan.scale2 is None:
        return words
    if is_shared(plan, plan.scale2):
        return words + lanes * (1 if dtypes.bias2 == NO_TENSOR else 2)
    if is_own(plan.scale2):
        return words + words_of(item_size, dtypes.weight2, dtypes.bias2)
    return words + words_of(item_size, dtypes.weight2, dtypes.bias2, dtypes.scale2)


def table_kinds(*, shared: bool, merged: bool, bias: bool, second: bool, bias2: bool) -> int:
    """Values per element of a table (KINDS of norm_tanh_tables.cu).

    Args:
        shared: whether a section's rows take the same residual.
        merged: whether that is part of the terms (`is_merged`).
    """
    return 1 + (merged or bias) + (shared and not merged) + (1 + bias2 if second else 0)


def table_kinds_of(params: NormTanhParams, *, second: bool = False, bias2: bool = False) -> int:
    """`table_kinds` of a case, which has no plan yet."""
    shared, bias = params.residual != "token", "bias" in params.parameters
    shifted = second and params.norm == "layer" and params.residual == "scalar"
    merged = is_merged(shared=shared, bias=bias, float32=params.dtype == "float32", shifted=shifted)
    return table_kinds(shared=shared, merged=merged, bias=bias, second=second, bias2=bias2)


def is_narrow(dtypes: Dtypes) -> bool:
    """Whether all values are 16 bits wide. Float32 values take twice the registers, so fewer threads may be resident."""
    return DTYPE_CODES[torch.float32] not in dtypes
