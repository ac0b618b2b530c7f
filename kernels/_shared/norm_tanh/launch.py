"""The Triton kernel behind the two norm_tanh ops. Its optional stages: norm; tanh gate and residual; second norm and scale.

The fused launches run all stages of their op. The split yardstick launches one stage at a time, so that it is as well tuned.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.launching import tracing

from ..modulated_norm_triton import leaves_first, load_activation
from ..modulation import ROW, address, addressing, rows_differ
from ..row_norm_triton import (
    load_modulation,
    load_parameter,
    modulation_row,
    normalise,
    row_pointer,
    row_statistics,
    stride_unit,
    tile_mask,
)
from ..row_tiles import RowTile
from .plan import TanhPlan, is_shifted
from .tiles import most_registers


@triton.jit
def tanh(x):
    """tanh in float32; NaN stays NaN, and beyond 9.1 it is 1.  Within 0.9 units in the last place where |x| < 0.7, elsewhere 2.5 plus
    what the GPU's approximate exp2 and division add (4 are granted in the tests; torch's own tanh on a GPU is such a formula too).

    `1 - 2 / (exp(2|x|) + 1)` cancels near zero, so small arguments take an odd polynomial, fitted to tanh on [0, 0.7] for the least
    greatest relative error (1.5e-8).  Not the library's: Triton's interpreter has none.
    """
    square = x * x
    small = -5.1386603e-3 * square + 2.0091968e-2
    small = small * square - 5.3558855e-2
    small = small * square + 1.3329111e-1
    small = small * square - 3.3333191e-1
    small = small * (square * x) + x
    magnitude = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp2(magnitude * 2.8853900817779268) + 1.0)  # 2 / ln 2; at infinity 1 - 2 / inf
    return tl.where(magnitude < 0.7, small, tl.where(x < 0.0, -large, large))


@triton.jit
def short_tanh(x):
    """tanh in float32 within 4e-6 of its value, a sixtieth of what rounding to float16 adds, in two thirds of `tanh`'s instructions.

    Below 1/16, where `1 - 2 / (exp(2x) + 1)` would cancel, the first two terms of the Taylor series: the third is 2/15 x^4 = 2.1e-6.
    """
    square = x * x
    large = 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)  # 2 / ln 2
    return tl.where(square < 0.00390625, x - x * square * 0.3333333333, large)


@triton.jit
def gated_sum(x, residual, gate, DTYPE: tl.constexpr, SHORT: tl.constexpr):
    """residual + tanh(gate) * x of one tile, rounded to DTYPE."""
    factor = short_tanh(gate.to(tl.float32)) if SHORT else tanh(gate.to(tl.float32))
    return (residual.to(tl.float32) + factor * x).to(DTYPE)


@triton.jit
def _norm_tanh(
    x_ptr,
    residual_ptr,
    gate_ptr,
    weight_ptr,
    bias_ptr,
    weight2_ptr,
    bias2_ptr,
    scale2_ptr,
    y_ptr,
    y2_ptr,
    row_count,
    tokens,
    x_batch_stride,
    x_row_stride,
    residual_batch_stride,
    residual_group_stride,
    residual_rows,
    gate_batch_stride,
    gate_group_stride,
    gate_rows,
    scale2_batch_stride,
    scale2_group_stride,
    scale2_rows,
    eps,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    LAYER: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    STREAM: tl.constexpr,
    GATE: tl.constexpr,
    SCALE2: tl.constexpr,
    WEIGHT2: tl.constexpr,
    BIAS2: tl.constexpr,
    RESIDUAL_PER_ROW: tl.constexpr,
    PER_ROW: tl.constexpr,
    SHIFTED: tl.constexpr,
    UNIT: tl.constexpr,
    LEAVES: tl.constexpr,
    SHORT: tl.constexpr = False,
):
    """One program: ROWS rows.  RESIDUAL, GATE and SCALE2 are addressings, or negative where there is none; STREAM: the residual has
    a row for every token; RESIDUAL_PER_ROW: rows of a program may take different residuals; PER_ROW: different gates or scales;
    SHIFTED: the second norm takes y less the residual's one value (see `is_shifted`); LEAVES: see `load_activation`;
    SHORT: `short_tanh`."""
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

    first_batch = first // tokens
    first_token = first - first_batch * tokens
    target = rows.to(tl.int64) * D

    if GATE >= 0:
        # Residual and gate are asked for before the reduction waits for the row.
        if RESIDUAL_PER_ROW:
            residual_row = modulation_row(
                residual_ptr, batch, token, residual_batch_stride, residual_group_stride, residual_rows, RESIDUAL, UNIT
            )
        else:
            residual_row = modulation_row(
                residual_ptr, first_batch, first_token, residual_batch_stride, residual_group_stride, residual_rows, RESIDUAL, UNIT
            )
        if PER_ROW:
            gate_row = modulation_row(gate_ptr, batch, token, gate_batch_stride, gate_group_stride, gate_rows, GATE, UNIT)
        else:
            gate_row = modulation_row(gate_ptr, first_batch, first_token, gate_batch_stride, gate_group_stride, gate_rows, GATE, UNIT)
        if STREAM:
            head_residual = load_activation(residual_row, head_columns, head_mask, LEAVES)
        else:
            head_residual = load_modulation(residual_row, head_columns, head_mask, RESIDUAL, RESIDUAL_PER_ROW, D)
        head_gate = load_modulation(gate_row, head_columns, head_mask, GATE, PER_ROW, D)
        if TAIL:
            if STREAM:
                tail_residual = load_activation(residual_row, tail_columns, tail_mask, LEAVES)
            else:
                tail_residual = load_modulation(residual_row, tail_columns, tail_mask, RESIDUAL, RESIDUAL_PER_ROW, D)
            tail_gate = load_modulation(gate_row, tail_columns, tail_mask, GATE, PER_ROW, D)

    if NORM:
        mean, inverse = row_statistics(head, tail, head_columns, tail_columns, eps, D, TAIL, LAYER)
        weight = load_parameter(weight_ptr, head_columns, WEIGHT, D)
        bias = load_parameter(bias_ptr, head_columns, BIAS, D)
        head = normalise(head, mean, inverse, weight, bias, LAYER, WEIGHT, BIAS)
        if TAIL:
            tail_weight = load_parameter(weight_ptr, tail_columns, WEIGHT, D)
            tail_bias = load_parameter(bias_ptr, tail_columns, BIAS, D)
            tail = normalise(tail, mean, inverse, tail_weight, tail_bias, LAYER, WEIGHT, BIAS)
        if GATE < 0:
            tl.store(y_ptr + target + head_columns, head.to(y_ptr.dtype.element_ty), mask=head_mask)
            if TAIL:
                tl.store(y_ptr + target + tail_columns, tail.to(y_ptr.dtype.element_ty), mask=tail_mask)

    if GATE >= 0:
        rounded = gated_sum(head, head_residual, head_gate, y_ptr.dtype.element_ty, SHORT)
        tl.store(y_ptr + target + head_columns, rounded, mask=head_mask)
        head = tl.where(head_mask, rounded.to(tl.float32), 0.0)  # a residual of one value reaches the padding too
        if TAIL:
            rounded = gated_sum(tail, tail_residual, tail_gate, y_ptr.dtype.element_ty, SHORT)
            tl.store(y_ptr + target + tail_columns, rounded, mask=tail_mask)
            tail = tl.where(tail_mask, rounded.to(tl.float32), 0.0)

    if SCALE2 >= 0:
        if PER_ROW:
            scale2_row = modulation_row(scale2_ptr, batch, token, scale2_batch_stride, scale2_group_stride, scale2_rows, SCALE2, UNIT)
        else:
            scale2_row = modulation_row(
                scale2_ptr, first_batch, first_token, scale2_batch_stride, scale2_group_stride, scale2_rows, SCALE2, UNIT
            )
        head_scale = load_modulation(scale2_row, head_columns, head_mask, SCALE2, PER_ROW, D)
        tail_scale = head_scale
        if TAIL:
            tail_scale = load_modulation(scale2_row, tail_columns, tail_mask, SCALE2, PER_ROW, D)
        if SHIFTED:
            shift = tl.load(residual_ptr).to(y2_ptr.dtype.element_ty).to(tl.float32)  # rounded as y is: equal values leave zeros
            head = tl.where(head_columns < D, head - shift, 0.0)
            if TAIL:
                tail = tl.where(tail_columns < D, tail - shift, 0.0)
        mean, inverse = row_statistics(head, tail, head_columns, tail_columns, eps, D, TAIL, LAYER)
        weight = load_parameter(weight2_ptr, head_columns, WEIGHT2, D)
        bias = load_parameter(bias2_ptr, head_columns, BIAS2, D)
        head = normalise(head, mean, inverse, weight, bias, LAYER, WEIGHT2, BIAS2) * (1.0 + head_scale.to(tl.float32))
        tl.store(y2_ptr + target + head_columns, head.to(y2_ptr.dtype.element_ty), mask=head_mask)
        if TAIL:
            tail_weight = load_parameter(weight2_ptr, tail_columns, WEIGHT2, D)
            tail_bias = load_parameter(bias2_ptr, tail_columns, BIAS2, D)
            tail = normalise(tail, mean, inverse, tail_weight, tail_bias, LAYER, WEIGHT2, BIAS2) * (1.0 + tail_scale.to(tl.float32))
            tl.store(y2_ptr + target + tail_columns, tail.to(y2_ptr.dtype.element_ty), mask=tail_mask)


_norm_tanh_of_any_rows = triton.jit(_norm_tanh.fn, do_not_specialize=["row_count", "tokens"])
"""The same function, not compiled apart for counts that 16 divides: on an H200 that code takes 28 % longer on 4128 rows of 3840 than the
other on 4129."""


def launch(
    plan: TanhPlan,
    tile: RowTile,
    x: torch.Tensor,
    *,
    y: torch.Tensor | None = None,
    norm: str | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    y2: torch.Tensor | None = None,
    weight2: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    scale2: torch.Tensor | None = None,
    any_rows: bool = False,
    short: bool = False,
    chained: bool = False,
) -> None:
    """One launch over x `[B, S, D]` of the stages whose arguments are given.

    Args:
        y: contiguous output `[B, S, D]` of the norm, or of the gate stage where there is one.
        norm: `layer` or `rms`, of both norms; None, or no y, leaves the first norm out.
        residual, gate: the gate stage, `y = residual + tanh(gate) * x`, rounded to y's dtype; both or neither. The second norm alone takes
            the residual where its plan `is_shifted`.
        y2, scale2: contiguous output of the second norm and its scale, which take the rounded y; both or neither.
        any_rows: use one specialisation for every count of rows and tokens. Otherwise Triton compiles a further one for multiples of 16,
            and one for 1. Under torch.compile Inductor always compiles a further one for multiples of 16 (up to torch 2.13 at least).
        short: take `short_tanh`, for outputs of 16 bits.
        chained: whether it is a launch of a chain (`modulated_norm_triton.leaves_first`).
    """
    if plan.rows == 0:
        return
    gates = [broadcast for given, broadcast in ((gate, plan.gate), (scale2, plan.scale2)) if given is not None and broadcast]
    narrow = all(tensor is None or tensor.element_size() == 2 for tensor in (x, residual, gate, weight, bias, weight2, bias2, scale2))
    residual_at, gate_at, scale2_at = address(plan.residual, residual), address(plan.gate, gate), address(plan.scale2, scale2)
    kernel: Any = launchable(_norm_tanh_of_any_rows if any_rows else _norm_tanh)
    kernel[(triton.cdiv(plan.rows, tile.rows),)](
        x,
        x if residual is None else residual,  # pointers of stages that are left out are never read
        x if gate is None else gate,
        x if weight is None else weight,
        x if bias is None else bias,
        x if weight2 is None else weight2,
        x if bias2 is None else bias2,
        x if scale2 is None else scale2,
        x if y is None else y,
        x if y2 is None else y2,
        plan.rows,
        plan.tokens,
        x.stride(0),
        x.stride(1),
        *residual_at,
        *gate_at,
        *scale2_at,
        eps,
        D=plan.hidden,
        ROWS=tile.rows,
        HEAD=tile.head,
        TAIL=tile.tail,
        LAYER=norm == "layer",
        NORM=norm is not None and y is not None,
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        RESIDUAL=addressing(plan.residual, residual),
        STREAM=residual is not None and plan.residual.addressing == ROW and plan.residual.rows_per_group == 1,
        GATE=addressing(plan.gate, gate),
        SCALE2=addressing(plan.scale2, scale2),
        WEIGHT2=weight2 is not None,
        BIAS2=bias2 is not None,
        RESIDUAL_PER_ROW=residual is not None and rows_differ([plan.residual], tile.rows),
        PER_ROW=rows_differ(gates, tile.rows),
        SHIFTED=residual is not None and scale2 is not None and is_shifted(plan, layer=norm == "layer"),
        UNIT=stride_unit(x.stride(0), x.stride(1), *residual_at[:2], *gate_at[:2], *scale2_at[:2]),
        LEAVES=chained and leaves_first(x, residual, y, y2),
        SHORT=short,
        num_warps=tile.num_warps,
        # Contracted, unlike where v must be torch's to the bit: no step here is the split chain's, whose roundings come in between,
        # and tanh would be longer.  Under torch.compile options cannot be passed, and Triton's defaults decide.
        **({} if tracing() else {"enable_fp_fusion": True, "maxnreg": most_registers(tile, narrow=narrow)}),
    )
