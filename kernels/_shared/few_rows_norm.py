"""The Triton kernel of norm_scale_shift and its residual form for few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.launching import tracing

from .few_rows_triton import load_modulated, load_row, place, undivided, wide
from .modulated_norm_triton import residual_gate
from .modulation import address, addressing
from .norm_arguments import Plan
from .row_norm_triton import load_parameter, normalise, row_statistics
from .row_tiles import RowTile


@triton.jit
def _few_modulated(
    x_ptr,
    residual_ptr,
    gate_ptr,
    x_token,
    residual_token,
    scale_ptr,
    shift_ptr,
    y_ptr,
    v_ptr,
    eps,
    weight_ptr,
    bias_ptr,
    tokens,
    x_sample,
    residual_sample,
    gate_sample,
    gate_group,
    gate_rows,
    scale_sample,
    scale_group,
    scale_rows,
    shift_sample,
    shift_group,
    shift_rows,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
    LAYER: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    GATE: tl.constexpr,
    SCALE: tl.constexpr,
    SHIFT: tl.constexpr,
    SAMPLES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: one row.  GATE, SCALE and SHIFT are addressings, or negative where there is none."""
    token, sample = place(SAMPLES, WIDE)
    columns = tl.arange(0, BLOCK)[None, :]
    mask = columns < D
    x = load_row(x_ptr, columns, mask, token, sample, x_sample, x_token, SAMPLES).to(tl.float32)
    if RESIDUAL:
        residual = load_row(residual_ptr, columns, mask, token, sample, residual_sample, residual_token, SAMPLES).to(tl.float32)
        gate = load_modulated(gate_ptr, columns, mask, token, sample, gate_sample, gate_group, gate_rows, GATE, SAMPLES)
    scale = load_modulated(scale_ptr, columns, mask, token, sample, scale_sample, scale_group, scale_rows, SCALE, SAMPLES)
    shift = load_modulated(shift_ptr, columns, mask, token, sample, shift_sample, shift_group, shift_rows, SHIFT, SAMPLES)
    weight = load_parameter(weight_ptr, columns, WEIGHT, D)
    bias = load_parameter(bias_ptr, columns, BIAS, D)
    target = columns + (sample * tokens + token) * D
    if RESIDUAL:
        rounded = residual_gate(x, residual, gate, GATE, v_ptr.dtype.element_ty)
        x = tl.where(mask, rounded.to(tl.float32), 0.0)  # a scalar gate may be Inf, which times the padding is NaN
    mean, inverse = row_statistics(x, x, columns, columns, eps, D, 0, LAYER)
    x = normalise(x, mean, inverse, weight, bias, LAYER, WEIGHT, BIAS)
    if SCALE >= 0:
        x = x * (1.0 + scale.to(tl.float32)) + shift.to(tl.float32)
    if RESIDUAL:
        tl.store(v_ptr + target, rounded, mask=mask)  # last: a store ahead of the sums holds them up
    tl.store(y_ptr + target, x.to(y_ptr.dtype.element_ty), mask=mask)


def launch(
    plan: Plan,
    tile: RowTile,
    options: Mapping[str, Any],
    x: torch.Tensor,
    *,
    y: torch.Tensor,
    norm: str,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
) -> None:
    """One launch over x `[B, S, D]`; arguments as in `modulated_norm_triton.launch`, with a tile of one row in one block."""
    if plan.rows == 0:
        return
    other = x if residual is None else residual
    gate_at = undivided(address(plan.gate, gate))
    scale_at, shift_at = undivided(address(plan.scale, scale)), undivided(address(plan.shift, shift))
    kernel: Any = launchable(_few_modulated)
    kernel[(plan.tokens, plan.batch)](
        x,
        other,  # pointers of stages that are left out are never read
        x if gate is None else gate,
        x.stride(1),
        other.stride(1),
        x if scale is None else scale,
        x if shift is None else shift,
        y,
        x if v is None else v,
        eps,
        x if weight is None else weight,
        x if bias is None else bias,
        plan.tokens,
        x.stride(0),
        other.stride(0),
        *gate_at,
        *scale_at,
        *shift_at,
        D=plan.hidden,
        BLOCK=tile.head,
        RESIDUAL=residual is not None,
        LAYER=norm == "layer",
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        GATE=addressing(plan.gate, gate),
        SCALE=addressing(plan.scale, scale),
        SHIFT=addressing(plan.shift, shift),
        SAMPLES=plan.batch > 1,
        WIDE=wide(plan.tokens, plan.batch, plan.hidden, y.stride(), x.stride(), other.stride(), gate_at, scale_at, shift_at),
        num_warps=tile.num_warps,
        **({} if tracing() else options),
    )
