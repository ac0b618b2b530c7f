"""For few rows: a program per row, whose first load comes soon after its start; see `_shared/few_rows_triton.py`."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_tanh.few_rows import launch
from .._shared.row_tiles import WARPS, few_rows_tile, not_few_rows
from .op import Arguments, Params


@kernel(
    "norm_tanh_mul_add", "fused_triton", version=5, role="fused", language="triton", replay=True,
    note="for few rows: asks for every operand at once, and soon after its start", choices=WARPS,
)  # fmt: skip
def fused_triton(call: Arguments, choice: float = 1.0) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = call.checked()
    call.require_gpu()
    y = call.allocate()
    launch(
        plan, few_rows_tile(plan.hidden, choice), call.x,
        y=y, norm=call.norm, weight=call.weight, bias=call.bias, eps=call.eps, residual=call.residual, gate=call.gate,
    )  # fmt: skip
    return y


@fused_triton.supports
def _(params: Params) -> bool | str:
    return not_few_rows(params.rows, params.hidden, unaligned=params.unaligned) or True
