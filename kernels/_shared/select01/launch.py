"""The Triton kernel behind the select01 ops: residual, layer norm, and a modulation by one of two row sets, which each token chooses.

The fused launches run all stages of their op; the split yardstick's last launch leaves out the residual and the norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.launching import tracing
from fusebench.registry.layouts import layout_of

from .. import modulated_norm_triton, norm_arguments
from ..modulated_norm_triton import leaves_first, load_activation
from ..modulation import Broadcast, broadcast
from ..row_norm_triton import load_parameter, normalise, row_pointer, row_statistics, stride_unit, tile_mask, whole
from ..row_tiles import RowTile, flat, tuned
from .plan import Plan, rows_of

NONE = Broadcast(0, 0, 1, 0)
"""Stands for a modulation that a launch leaves out."""
LATE_ROWS = 2048
"""Rows up to which, and with a residual for any, a lean selection stores its gate and v after the norm instead of before, which the loads
behind a store wait for. On an H200 (256e8edd), in microseconds before and after: 128 rows of 3072 3.61 and 3.04, 1028 7.64 and 7.27, but
4096 21.0 and 22.4; with a residual 1028 11.6 and 10.9, 4096 37.8 and 36.8. Where both row sets are loaded registers run out: 37.4 and 40.9.
Between 1028 and 4096 rows nothing was measured."""


@triton.jit
def load_selected(zero_row, one_row, chosen, columns, mask, ROWS: tl.constexpr, BOTH: tl.constexpr):
    """A tile of the chosen row set in its own dtype: with BOTH loaded from either and selected, else from the chosen address alone.

    zero_row, one_row (pointers) and chosen are scalars where a program has one row, else `[ROWS, 1]`.
    """
    if BOTH:
        zero = tl.load(zero_row + columns, mask=mask, other=0.0)
        one = tl.load(one_row + columns, mask=mask, other=0.0)
        values = tl.where(chosen, one, zero)  # not by arithmetic: a NaN of the other set must stay there
    elif ROWS == 1:
        values = tl.load(tl.where(chosen, one_row, zero_row) + columns, mask=mask, other=0.0)
    else:
        # Added before the selection, because of a column of selected pointers Triton forgets the alignment and loads 2 bytes at a time.
        values = tl.load(tl.where(chosen, one_row + columns, zero_row + columns), mask=mask, other=0.0)
    return values


@triton.jit
def modulate(x, scale, shift):
    """One tile in float32."""
    return x * (1.0 + scale.to(tl.float32)) + shift.to(tl.float32)


@triton.jit
def store_outputs(
    gate_out_ptr, v_ptr, target, head_columns, tail_columns, head_mask, tail_mask, head_gate, tail_gate, head, tail,
    RESIDUAL: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Store the chosen gate and, with RESIDUAL, v, which is `head` and `tail` before the norm."""
    tl.store(gate_out_ptr + target + head_columns, head_gate.to(gate_out_ptr.dtype.element_ty), mask=head_mask)
    if TAIL:
        tl.store(gate_out_ptr + target + tail_columns, tail_gate.to(gate_out_ptr.dtype.element_ty), mask=tail_mask)
    if RESIDUAL:
        tl.store(v_ptr + target + head_columns, head.to(v_ptr.dtype.element_ty), mask=head_mask)
        if TAIL:
            tl.store(v_ptr + target + tail_columns, tail.to(v_ptr.dtype.element_ty), mask=tail_mask)


@triton.jit
def _select01(
    x_ptr,
    residual_ptr,
    residual_gate_ptr,
    weight_ptr,
    bias_ptr,
    scale0_ptr,
    shift0_ptr,
    gate0_ptr,
    scale1_ptr,
    shift1_ptr,
    gate1_ptr,
    index_ptr,
    y_ptr,
    v_ptr,
    gate_out_ptr,
    row_count,
    tokens,
    x_batch_stride,
    x_row_stride,
    residual_batch_stride,
    residual_row_stride,
    residual_gate_batch_stride,
    residual_gate_row_stride,
    scale0_stride,
    shift0_stride,
    gate0_stride,
    scale1_stride,
    shift1_stride,
    gate1_stride,
    index_batch_stride,
    index_token_stride,
    eps,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    BOTH: tl.constexpr,
    UNIT: tl.constexpr,
    EARLY: tl.constexpr,
    LATE: tl.constexpr,
    LEAVES: tl.constexpr,
):
    """One program: ROWS rows.  BOTH: load both row sets and select between values; else select the address and load one.  EARLY: ask for
    the norm's weight and bias, too, before the first store and the reduction.  LATE: store nothing before the norm is done.  LEAVES: see
    `load_activation`."""
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)[:, None]
    place = rows
    if ROWS == 1:
        place = first  # a scalar: one address per program, not one per thread
    # 64-bit: rows x D passes 2^31 elements on long videos.
    batch = (place // tokens).to(tl.int64)
    token = (place % tokens).to(tl.int64)
    # First, because the modulations' addresses wait for it.
    index = index_ptr + batch * index_batch_stride + token * index_token_stride
    chosen = tl.load(index, mask=place < row_count, other=0) != 0

    head_columns = tl.arange(0, HEAD)[None, :]
    head_mask = tile_mask(rows, head_columns, row_count, D, ROWS)
    x_row = row_pointer(x_ptr, batch, token, x_batch_stride, x_row_stride, UNIT)
    residual_row = row_pointer(residual_ptr, batch, token, residual_batch_stride, residual_row_stride, UNIT)
    residual_gate_row = row_pointer(residual_gate_ptr, batch, token, residual_gate_batch_stride, residual_gate_row_stride, UNIT)
    head = load_activation(x_row, head_columns, head_mask, LEAVES)
    if RESIDUAL:
        head = load_activation(residual_row, head_columns, head_mask, LEAVES) + head * load_activation(
            residual_gate_row, head_columns, head_mask, LEAVES
        )
    tail_columns = head_columns
    tail_mask = head_mask
    tail = head
    if TAIL:
        tail_columns = HEAD + tl.arange(0, TAIL)[None, :]
        tail_mask = tile_mask(rows, tail_columns, row_count, D, ROWS)
        tail = load_activation(x_row, tail_columns, tail_mask, LEAVES)
        if RESIDUAL:
            tail = load_activation(residual_row, tail_columns, tail_mask, LEAVES) + tail * load_activation(
                residual_gate_row, tail_columns, tail_mask, LEAVES
            )

    # All modulations are asked for before the reduction waits for the row, and before any store, which no load may overtake.
    scale0 = scale0_ptr + batch * whole(scale0_stride, UNIT)
    scale1 = scale1_ptr + batch * whole(scale1_stride, UNIT)
    shift0 = shift0_ptr + batch * whole(shift0_stride, UNIT)
    shift1 = shift1_ptr + batch * whole(shift1_stride, UNIT)
    gate0 = gate0_ptr + batch * whole(gate0_stride, UNIT)
    gate1 = gate1_ptr + batch * whole(gate1_stride, UNIT)
    head_gate = load_selected(gate0, gate1, chosen, head_columns, head_mask, ROWS, BOTH)
    head_scale = load_selected(scale0, scale1, chosen, head_columns, head_mask, ROWS, BOTH)
    head_shift = load_selected(shift0, shift1, chosen, head_columns, head_mask, ROWS, BOTH)
    tail_gate = head_gate
    tail_scale = head_scale
    tail_shift = head_shift
    if TAIL:
        tail_gate = load_selected(gate0, gate1, chosen, tail_columns, tail_mask, ROWS, BOTH)
        tail_scale = load_selected(scale0, scale1, chosen, tail_columns, tail_mask, ROWS, BOTH)
        tail_shift = load_selected(shift0, shift1, chosen, tail_columns, tail_mask, ROWS, BOTH)

    if NORM and EARLY:
        weight = load_parameter(weight_ptr, head_columns, WEIGHT, D)
        bias = load_parameter(bias_ptr, head_columns, BIAS, D)
    target = rows.to(tl.int64) * D
    v_head = head
    v_tail = tail
    if not LATE:
        store_outputs(
            gate_out_ptr, v_ptr, target, head_columns, tail_columns, head_mask, tail_mask, head_gate, tail_gate, v_head, v_tail,
            RESIDUAL, TAIL,
        )  # fmt: skip
    if NORM:
        mean, inverse = row_statistics(head, tail, head_columns, tail_columns, eps, D, TAIL, True)
        if not EARLY:
            weight = load_parameter(weight_ptr, head_columns, WEIGHT, D)
            bias = load_parameter(bias_ptr, head_columns, BIAS, D)
        head = normalise(head, mean, inverse, weight, bias, True, WEIGHT, BIAS)
        if TAIL:
            tail_weight = load_parameter(weight_ptr, tail_columns, WEIGHT, D)
            tail_bias = load_parameter(bias_ptr, tail_columns, BIAS, D)
            tail = normalise(tail, mean, inverse, tail_weight, tail_bias, True, WEIGHT, BIAS)
    if LATE:
        store_outputs(
            gate_out_ptr, v_ptr, target, head_columns, tail_columns, head_mask, tail_mask, head_gate, tail_gate, v_head, v_tail,
            RESIDUAL, TAIL,
        )  # fmt: skip
    head = modulate(head, head_scale, head_shift)
    tl.store(y_ptr + target + head_columns, head.to(y_ptr.dtype.element_ty), mask=head_mask)
    if TAIL:
        tail = modulate(tail, tail_scale, tail_shift)
        tl.store(y_ptr + target + tail_columns, tail.to(y_ptr.dtype.element_ty), mask=tail_mask)


def launch(
    plan: Plan,
    tile: RowTile,
    x: torch.Tensor,
    rows: Sequence[torch.Tensor],
    index: torch.Tensor,
    *,
    y: torch.Tensor,
    gate_out: torch.Tensor,
    both: bool,
    residual: torch.Tensor | None = None,
    residual_gate: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    norm: bool = True,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 0.0,
    early: bool = False,
    late: bool = False,
    chained: bool = False,
) -> None:
    """One launch over x `[B, L, C]`.

    Args:
        rows: the six rows, as `select01_params.ROWS`.
        y, gate_out, v: contiguous outputs `[B, L, C]`; v is needed with residual only.
        both: load both row sets and select between values, instead of selecting the address and loading one.
        residual, residual_gate: `v = residual + residual_gate * x`; the norm takes the unrounded v.
        norm: False leaves the norm out: x is modulated as it is.
        early: ask for all operands before the reduction and the first store; of rows in one tile.
        late: store nothing before the norm is done.
        chained: whether it is a launch of a chain (`modulated_norm_triton.leaves_first`).
    """
    if plan.rows == 0:
        return
    kernel: Any = launchable(_select01)
    other, factor = (x, x) if residual is None or residual_gate is None else (residual, residual_gate)
    kernel[(triton.cdiv(plan.rows, tile.rows),)](
        x,
        other,  # pointers of stages that are left out are never read
        factor,
        x if weight is None else weight,
        x if bias is None else bias,
        *rows,
        index,
        y,
        x if v is None else v,
        gate_out,
        plan.rows,
        plan.tokens,
        x.stride(0),
        x.stride(1),
        other.stride(0),
        other.stride(1),
        factor.stride(0),
        factor.stride(1),
        *plan.row_strides,
        *plan.index_strides,
        eps,
        D=plan.hidden,
        ROWS=tile.rows,
        HEAD=tile.head,
        TAIL=tile.tail,
        RESIDUAL=residual is not None,
        NORM=norm,
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        BOTH=both,
        UNIT=stride_unit(*x.stride()[:2], *other.stride()[:2], *factor.stride()[:2], *plan.row_strides),
        EARLY=early,
        LATE=late,
        LEAVES=chained and leaves_first(x, residual, residual_gate, y, v, gate_out),
        num_warps=tile.num_warps,
        # Uncontracted, residual + gate * x rounds as torch's float32 chain does.  Under torch.compile the option cannot be passed, and
        # the last bit may differ from the eager call's where a rounding is close.
        **({} if tracing() else {"enable_fp_fusion": False}),
    )


def fused(call: Any, tile: Callable[[int], RowTile], *, both: bool, early: bool = False) -> Any:
    """Either select01 op in one launch: (y, gate_out), with a residual (y, v, gate_out).

    Args:
        call: the op's arguments.
        tile: the version's tile of a row of D elements.
        both: load both row sets and select between values.
        early: ask for all operands before the reduction and the first store.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    plan = call.checked()
    call.require_gpu()
    outputs = call.allocate()
    y, gate_out = outputs[0], outputs[-1]
    residual, gate, v = (call.residual, call.residual_gate, outputs[1]) if len(outputs) == 3 else (None, None, None)
    launch(
        plan, tile(plan.hidden), call.x, rows_of(call), call.index,
        y=y, gate_out=gate_out, both=both, residual=residual, residual_gate=gate, v=v, weight=call.weight, bias=call.bias, eps=call.eps,
        early=early, late=not both and (residual is not None or plan.rows <= LATE_ROWS),
    )  # fmt: skip
    return outputs


def split(call: Any) -> Any:
    """Either select01 op with one launch for each step that models have a kernel for; arguments, results and errors as `fused`."""
    plan = call.checked()
    call.require_gpu()
    outputs, x, rows = call.allocate(), call.x, rows_of(call)
    y, gate_out = outputs[0], outputs[-1]
    normed = x.new_empty(x.shape, dtype=modulated_norm_triton.intermediate_dtype(x, call.weight, call.bias, rows[0]))
    residual, gate, v = (call.residual, call.residual_gate, outputs[1]) if len(outputs) == 3 else (None, None, None)
    spread = None if gate is None else broadcast(call.op, "residual_gate", layout_of(gate), layout_of(x))
    steps = norm_arguments.Plan(plan.batch, plan.tokens, plan.hidden, scale=NONE, shift=NONE, gate=spread)
    options = modulated_norm_triton.UNCONTRACTED
    if residual is not None:
        modulated_norm_triton.launch(steps, flat(plan.hidden), options, x, v=v, residual=residual, gate=gate, chained=True)
    modulated_norm_triton.launch(
        steps, tuned(plan.hidden), options, x if v is None else v,
        y=normed, norm="layer", weight=call.weight, bias=call.bias, eps=call.eps, chained=True,
    )  # fmt: skip
    launch(plan, tuned(plan.hidden), normed, rows, call.index, y=y, gate_out=gate_out, both=False, norm=False, chained=True)
    return outputs
