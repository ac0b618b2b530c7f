"""The Triton kernel of the select01 ops for few rows."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.launching import tracing

from ..few_rows_triton import load_row, place, wide
from ..row_norm_triton import load_parameter, normalise, row_statistics
from ..row_tiles import few_rows_tile
from .launch import modulate
from .plan import rows_of


@triton.jit
def load_sets(zero_ptr, one_ptr, columns, mask, sample, zero_stride, one_stride, SAMPLES: tl.constexpr):
    """The rows of both sets, so that no load waits for the index."""
    zero = load_row(zero_ptr, columns, mask, 0, sample, zero_stride, 0, SAMPLES)
    one = load_row(one_ptr, columns, mask, 0, sample, one_stride, 0, SAMPLES)
    return zero, one


@triton.jit
def _few_select01(
    x_ptr,
    residual_ptr,
    residual_gate_ptr,
    x_token,
    residual_token,
    residual_gate_token,
    index_token,
    index_ptr,
    scale0_ptr,
    shift0_ptr,
    gate0_ptr,
    scale1_ptr,
    shift1_ptr,
    gate1_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    v_ptr,
    gate_out_ptr,
    eps,
    tokens,
    x_sample,
    residual_sample,
    residual_gate_sample,
    scale0_sample,
    shift0_sample,
    gate0_sample,
    scale1_sample,
    shift1_sample,
    gate1_sample,
    index_sample,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    SAMPLES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: one row.  Both row sets are loaded, and values selected."""
    token, sample = place(SAMPLES, WIDE)
    columns = tl.arange(0, BLOCK)[None, :]
    mask = columns < D
    x = load_row(x_ptr, columns, mask, token, sample, x_sample, x_token, SAMPLES).to(tl.float32)
    index = token * index_token
    if SAMPLES:
        index += sample * index_sample
    chosen = tl.load(index_ptr + index) != 0
    if RESIDUAL:
        residual = load_row(residual_ptr, columns, mask, token, sample, residual_sample, residual_token, SAMPLES).to(tl.float32)
        factor = load_row(residual_gate_ptr, columns, mask, token, sample, residual_gate_sample, residual_gate_token, SAMPLES)
        x = residual + x * factor.to(tl.float32)
    gate_zero, gate_one = load_sets(gate0_ptr, gate1_ptr, columns, mask, sample, gate0_sample, gate1_sample, SAMPLES)
    scale_zero, scale_one = load_sets(scale0_ptr, scale1_ptr, columns, mask, sample, scale0_sample, scale1_sample, SAMPLES)
    shift_zero, shift_one = load_sets(shift0_ptr, shift1_ptr, columns, mask, sample, shift0_sample, shift1_sample, SAMPLES)
    weight = load_parameter(weight_ptr, columns, WEIGHT, D)
    bias = load_parameter(bias_ptr, columns, BIAS, D)
    target = columns + (sample * tokens + token) * D
    mean, inverse = row_statistics(x, x, columns, columns, eps, D, 0, True)
    # Selected, not reckoned: a NaN of the other set must stay there.
    y = modulate(
        normalise(x, mean, inverse, weight, bias, True, WEIGHT, BIAS),
        tl.where(chosen, scale_one, scale_zero),
        tl.where(chosen, shift_one, shift_zero),
    )
    # Stored last: a store ahead of the sums holds them up.
    if RESIDUAL:
        tl.store(v_ptr + target, x.to(v_ptr.dtype.element_ty), mask=mask)
    tl.store(gate_out_ptr + target, tl.where(chosen, gate_one, gate_zero).to(gate_out_ptr.dtype.element_ty), mask=mask)
    tl.store(y_ptr + target, y.to(y_ptr.dtype.element_ty), mask=mask)


def fused(call: Any, warps: float) -> Any:
    """Either select01 op in one launch, with `warps` times those of `few_rows_tile`; results and errors as of `.launch.fused`."""
    plan = call.checked()
    call.require_gpu()
    outputs, x = call.allocate(), call.x
    if plan.rows == 0:
        return outputs
    residual, gate, v = (call.residual, call.residual_gate, outputs[1]) if len(outputs) == 3 else (None, None, None)
    other, factor = (x, x) if residual is None else (residual, gate)
    sets = [(stride, 0) for stride in plan.row_strides]
    tile = few_rows_tile(plan.hidden, warps)
    kernel: Any = launchable(_few_select01)
    kernel[(plan.tokens, plan.batch)](
        x,
        other,  # pointers of stages that are left out are never read
        factor,
        x.stride(1),
        other.stride(1),
        factor.stride(1),
        plan.index_strides[1],
        call.index,
        *rows_of(call),
        x if call.weight is None else call.weight,
        x if call.bias is None else call.bias,
        outputs[0],
        x if v is None else v,
        outputs[-1],
        call.eps,
        plan.tokens,
        x.stride(0),
        other.stride(0),
        factor.stride(0),
        *plan.row_strides,
        plan.index_strides[0],
        D=plan.hidden,
        BLOCK=tile.head,
        RESIDUAL=residual is not None,
        WEIGHT=call.weight is not None,
        BIAS=call.bias is not None,
        SAMPLES=plan.batch > 1,
        WIDE=wide(
            plan.tokens, plan.batch, plan.hidden, *(one.stride() for one in (x, other, factor, outputs[0])), plan.index_strides, *sets
        ),
        num_warps=tile.num_warps,
        **({} if tracing() else {"enable_fp_fusion": False}),  # as in `.launch.launch`
    )
    return outputs
