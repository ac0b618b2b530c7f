"""The Triton kernel behind norm_scale_shift and its residual form.

Its stages are residual + gate, norm and modulation; each can be left out. The fused launches run all stages of their op.
The split yardstick launches one stage at a time, so that it is as well tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.launching import tracing

from .modulation import address, addressing, rows_differ
from .norm_arguments import Plan
from .row_norm_triton import load_modulation, load_parameter, modulation_row, normalise, row_pointer, row_statistics, stride_unit, tile_mask
from .row_tiles import RowTile

CHAIN_BYTES = 2 * 50 * 2**20
"""Bytes of a launch, twice an H200's L2, up to which a chain's launch lets go first of what it reads: the next launch then finds what this
one wrote. There split chains of 50 to 134 MB took 6 to 18 % longer without the hint. Larger ones took 1 to 13 % longer with it, and so did
most launches of one kernel."""


def leaves_first(*tensors: torch.Tensor | None) -> bool:
    """Whether a launch of a chain lets go first of what it reads; the tensors are those that it reads and writes once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None) <= CHAIN_BYTES


@triton.jit
def load_activation(pointer, columns, mask, LEAVES: tl.constexpr):
    """A tile in float32, zero past the mask; LEAVES: it leaves the caches first."""
    policy: tl.constexpr = "evict_first" if LEAVES else ""
    return tl.load(pointer + columns, mask=mask, other=0.0, eviction_policy=policy).to(tl.float32)


@triton.jit
def residual_gate(x, residual, gate, GATE: tl.constexpr, DTYPE: tl.constexpr):
    """residual + gate * x of one tile, rounded through DTYPE."""
    if GATE >= 0:
        x = x * gate.to(tl.float32)
    return (residual + x).to(DTYPE)


@triton.jit
def _modulated_norm(
    x_ptr,
    residual_ptr,
    gate_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    y_ptr,
    v_ptr,
    row_count,
    tokens,
    x_batch_stride,
    x_row_stride,
    residual_batch_stride,
    residual_row_stride,
    gate_batch_stride,
    gate_group_stride,
    gate_rows,
    scale_batch_stride,
    scale_group_stride,
    scale_rows,
    shift_batch_stride,
    shift_group_stride,
    shift_rows,
    eps,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    LAYER: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    PER_ROW: tl.constexpr,
    UNIT: tl.constexpr,
    LEAVES: tl.constexpr,
):
    """One program: ROWS rows.  GATE, SCALE and SHIFT are addressings, or negative where there is none; PER_ROW: rows of a program
    may take different modulations; LEAVES: see `load_activation`."""
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)[:, None]
    batch = rows // tokens
    token = rows - batch * tokens
    head_columns = tl.arange(0, HEAD)[None, :]
    head_mask = tile_mask(rows, head_columns, row_count, D, ROWS)
    source = row_pointer(x_ptr, batch, token, x_batch_stride, x_row_stride, UNIT)
    head = load_activation(source, head_columns, head_mask, LEAVES)
    tail_columns = head_columns
    tail_mask = head_mask
    tail = head
    if TAIL:
        tail_columns = HEAD + tl.arange(0, TAIL)[None, :]
        tail_mask = tile_mask(rows, tail_columns, row_count, D, ROWS)
        tail = load_activation(source, tail_columns, tail_mask, LEAVES)

    group_batch = batch
    group_token = token
    if not PER_ROW:
        group_batch = first // tokens
        group_token = first - group_batch * tokens
    target = rows.to(tl.int64) * D

    if RESIDUAL:
        residual_source = row_pointer(residual_ptr, batch, token, residual_batch_stride, residual_row_stride, UNIT)
        gate_row = modulation_row(gate_ptr, group_batch, group_token, gate_batch_stride, gate_group_stride, gate_rows, GATE, UNIT)
        residual = load_activation(residual_source, head_columns, head_mask, LEAVES)
        gate = 1.0
        if GATE >= 0:
            gate = load_modulation(gate_row, head_columns, head_mask, GATE, PER_ROW, D)
        rounded = residual_gate(head, residual, gate, GATE, v_ptr.dtype.element_ty)
        tl.store(v_ptr + target + head_columns, rounded, mask=head_mask)
        head = tl.where(head_mask, rounded.to(tl.float32), 0.0)  # a scalar gate may be Inf, which times the padding is NaN
        if TAIL:
            residual = load_activation(residual_source, tail_columns, tail_mask, LEAVES)
            if GATE >= 0:
                gate = load_modulation(gate_row, tail_columns, tail_mask, GATE, PER_ROW, D)
            rounded = residual_gate(tail, residual, gate, GATE, v_ptr.dtype.element_ty)
            tl.store(v_ptr + target + tail_columns, rounded, mask=tail_mask)
            tail = tl.where(tail_mask, rounded.to(tl.float32), 0.0)

    if NORM or SCALE >= 0:
        # The modulations are asked for before the reduction waits for the row.
        scale_row = modulation_row(scale_ptr, group_batch, group_token, scale_batch_stride, scale_group_stride, scale_rows, SCALE, UNIT)
        shift_row = modulation_row(shift_ptr, group_batch, group_token, shift_batch_stride, shift_group_stride, shift_rows, SHIFT, UNIT)
        head_scale = 0.0
        head_shift = 0.0
        tail_scale = 0.0
        tail_shift = 0.0
        if SCALE >= 0:
            head_scale = load_modulation(scale_row, head_columns, head_mask, SCALE, PER_ROW, D)
            head_shift = load_modulation(shift_row, head_columns, head_mask, SHIFT, PER_ROW, D)
            if TAIL:
                tail_scale = load_modulation(scale_row, tail_columns, tail_mask, SCALE, PER_ROW, D)
                tail_shift = load_modulation(shift_row, tail_columns, tail_mask, SHIFT, PER_ROW, D)
        if NORM:
            mean, inverse = row_statistics(head, tail, head_columns, tail_columns, eps, D, TAIL, LAYER)
            weight = load_parameter(weight_ptr, head_columns, WEIGHT, D)
            bias = load_parameter(bias_ptr, head_columns, BIAS, D)
            head = normalise(head, mean, inverse, weight, bias, LAYER, WEIGHT, BIAS)
            if TAIL:
                tail_weight = load_parameter(weight_ptr, tail_columns, WEIGHT, D)
                tail_bias = load_parameter(bias_ptr, tail_columns, BIAS, D)
                tail = normalise(tail, mean, inverse, tail_weight, tail_bias, LAYER, WEIGHT, BIAS)
        if SCALE >= 0:
            head = head * (1.0 + head_scale.to(tl.float32)) + head_shift.to(tl.float32)
            if TAIL:
                tail = tail * (1.0 + tail_scale.to(tl.float32)) + tail_shift.to(tl.float32)
        tl.store(y_ptr + target + head_columns, head.to(y_ptr.dtype.element_ty), mask=head_mask)
        if TAIL:
            tl.store(y_ptr + target + tail_columns, tail.to(y_ptr.dtype.element_ty), mask=tail_mask)


UNCONTRACTED = {"enable_fp_fusion": False}
"""Compile options of a version. Without contraction, gate * x + residual rounds as torch's float32 chain does, so v equals the model's.
torch.compile does not accept the option; there v may differ from the eager call's in the last bit."""


def launch(
    plan: Plan,
    tile: RowTile,
    options: Mapping[str, Any],
    x: torch.Tensor,
    *,
    y: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    norm: str | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 0.0,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    chained: bool = False,
) -> None:
    """One launch over x `[B, S, D]` of the stages whose arguments are given.

    Args:
        tile, options: how rows are cut into programs, and Triton's compile options. They belong to the version that launches.
        y, v: contiguous outputs `[B, S, D]` of the norm or modulation, and of the residual stage.
        residual: `v = residual + gate * x`, rounded to v's dtype; later stages take the rounded v.
        norm: `layer`, `rms`, or None to leave that stage out.
        scale, shift: the modulation stage; both or neither.
        chained: whether it is a launch of a chain (`leaves_first`).
    """
    if plan.rows == 0:
        return
    used = [
        broadcast for given, broadcast in ((gate, plan.gate), (scale, plan.scale), (shift, plan.shift)) if given is not None and broadcast
    ]
    per_row = rows_differ(used, tile.rows)
    kernel: Any = launchable(_modulated_norm)
    other = x if residual is None else residual
    gate_at, scale_at, shift_at = address(plan.gate, gate), address(plan.scale, scale), address(plan.shift, shift)
    kernel[(triton.cdiv(plan.rows, tile.rows),)](
        x,
        other,  # pointers of stages that are left out are never read
        x if gate is None else gate,
        x if weight is None else weight,
        x if bias is None else bias,
        x if scale is None else scale,
        x if shift is None else shift,
        x if y is None else y,
        x if v is None else v,
        plan.rows,
        plan.tokens,
        x.stride(0),
        x.stride(1),
        other.stride(0),
        other.stride(1),
        *gate_at,
        *scale_at,
        *shift_at,
        eps,
        D=plan.hidden,
        ROWS=tile.rows,
        HEAD=tile.head,
        TAIL=tile.tail,
        RESIDUAL=residual is not None,
        NORM=norm is not None,
        LAYER=norm == "layer",
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        GATE=addressing(plan.gate, gate),
        SCALE=addressing(plan.scale, scale),
        SHIFT=addressing(plan.shift, shift),
        PER_ROW=per_row,
        UNIT=stride_unit(*x.stride()[:2], *other.stride()[:2], *gate_at[:2], *scale_at[:2], *shift_at[:2]),
        LEAVES=chained and leaves_first(x, residual, y, v),
        num_warps=tile.num_warps,
        **({} if tracing() else options),
    )


def intermediate_dtype(x: torch.Tensor, *beside: torch.Tensor | None) -> torch.dtype:
    """The dtype in which models keep the norm before the modulation: float32 if any tensor of `beside` is float32, else x's."""
    return x.dtype if all(tensor is None or tensor.dtype == x.dtype for tensor in beside) else torch.float32
