"""For few rows: a program per row, whose first load comes soon after its start; see `_shared/few_rows_triton.py`."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.few_rows_norm import launch
from .._shared.modulated_norm_triton import UNCONTRACTED
from .._shared.row_tiles import WARPS, few_rows_tile, not_few_rows
from .op import Arguments, Params


@kernel(
    "residual_gate_norm_scale_shift", "fused_triton", version=4, role="fused", language="triton", replay=True,
    note="for few rows: asks for every operand at once, and soon after its start", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y, v = call.allocate()
    launch(
        plan, few_rows_tile(plan.hidden, choice), UNCONTRACTED, call.x,
        y=y, v=v, residual=call.residual, gate=call.gate, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps,
        scale=call.scale, shift=call.shift,
    )  # fmt: skip
    return y, v


@fused_triton.supports
def _(params: Params) -> bool | str:
    return not_few_rows(params.rows, params.hidden, unaligned=params.unaligned) or True
