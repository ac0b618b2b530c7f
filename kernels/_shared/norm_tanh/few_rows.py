"""The Triton kernel of the two norm_tanh ops for few rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fusebench import launchable
from fusebench.registry.launching import tracing

from ..few_rows_triton import load_modulated, load_row, place, undivided, wide
from ..modulation import address, addressing
from ..row_norm_triton import load_parameter, normalise, row_statistics
from ..row_tiles import RowTile
from .launch import gated_sum
from .plan import TanhPlan, is_shifted


@triton.jit
def _few_norm_tanh(
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
    tokens,
    x_sample,
    x_token,
    residual_sample,
    residual_group,
    residual_rows,
    gate_sample,
    gate_group,
    gate_rows,
    scale2_sample,
    scale2_group,
    scale2_rows,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    LAYER: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATE: tl.constexpr,
    SCALE2: tl.constexpr,
    WEIGHT2: tl.constexpr,
    BIAS2: tl.constexpr,
    SHIFTED: tl.constexpr,
    SHORT: tl.constexpr,
    SAMPLES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: one row; constants as in `_norm_tanh`.  SCALE2 is negative where there is no second norm."""
    token, sample = place(SAMPLES, WIDE)
    columns = tl.arange(0, BLOCK)[None, :]
    mask = columns < D
    x = load_row(x_ptr, columns, mask, token, sample, x_sample, x_token, SAMPLES).to(tl.float32)
    residual = load_modulated(residual_ptr, columns, mask, token, sample, residual_sample, residual_group, residual_rows, RESIDUAL, SAMPLES)
    gate = load_modulated(gate_ptr, columns, mask, token, sample, gate_sample, gate_group, gate_rows, GATE, SAMPLES)
    weight = load_parameter(weight_ptr, columns, WEIGHT, D)
    bias = load_parameter(bias_ptr, columns, BIAS, D)
    scale2 = load_modulated(scale2_ptr, columns, mask, token, sample, scale2_sample, scale2_group, scale2_rows, SCALE2, SAMPLES)
    weight2 = load_parameter(weight2_ptr, columns, WEIGHT2, D)
    bias2 = load_parameter(bias2_ptr, columns, BIAS2, D)
    target = columns + (sample * tokens + token) * D
    mean, inverse = row_statistics(x, x, columns, columns, eps, D, 0, LAYER)
    rounded = gated_sum(normalise(x, mean, inverse, weight, bias, LAYER, WEIGHT, BIAS), residual, gate, y_ptr.dtype.element_ty, SHORT)
    tl.store(y_ptr + target, rounded, mask=mask)
    if SCALE2 >= 0:
        y = rounded.to(tl.float32)
        if SHIFTED:
            y -= tl.load(residual_ptr).to(y2_ptr.dtype.element_ty).to(tl.float32)  # rounded as y is: equal values leave zeros
        y = tl.where(mask, y, 0.0)  # a residual of one value reaches the padding too
        mean, inverse = row_statistics(y, y, columns, columns, eps, D, 0, LAYER)
        y = normalise(y, mean, inverse, weight2, bias2, LAYER, WEIGHT2, BIAS2) * (1.0 + scale2.to(tl.float32))
        tl.store(y2_ptr + target, y.to(y2_ptr.dtype.element_ty), mask=mask)


def launch(
    plan: TanhPlan,
    tile: RowTile,
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
) -> None:
    """One launch over x `[B, S, D]`; arguments as in `.launch.launch`, with a tile of one row in one block."""
    if plan.rows == 0:
        return
    residual_at, gate_at = undivided(address(plan.residual, residual)), undivided(address(plan.gate, gate))
    scale2_at = undivided(address(plan.scale2, scale2))
    kernel: Any = launchable(_few_norm_tanh)
    kernel[(plan.tokens, plan.batch)](
        x,
        residual,
        gate,
        x if weight is None else weight,  # pointers of what is left out are never read
        x if bias is None else bias,
        x if weight2 is None else weight2,
        x if bias2 is None else bias2,
        x if scale2 is None else scale2,
        y,
        y if y2 is None else y2,
        plan.tokens,
        *x.stride()[:2],
        *residual_at,
        *gate_at,
        *scale2_at,
        eps,
        D=plan.hidden,
        BLOCK=tile.head,
        LAYER=norm == "layer",
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        RESIDUAL=addressing(plan.residual, residual),
        GATE=addressing(plan.gate, gate),
        SCALE2=addressing(plan.scale2, scale2),
        WEIGHT2=weight2 is not None,
        BIAS2=bias2 is not None,
        SHIFTED=scale2 is not None and is_shifted(plan, layer=norm == "layer"),
        SHORT=y.element_size() == 2,
        SAMPLES=plan.batch > 1,
        WIDE=wide(plan.tokens, plan.batch, plan.hidden, y.stride(), x.stride(), residual_at, gate_at, scale2_at),
        num_warps=tile.num_warps,
        **({} if tracing() else {"enable_fp_fusion": True}),  # as in `.launch.launch`
    )
