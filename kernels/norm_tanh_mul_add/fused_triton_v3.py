"""The tuned fusion of version 2, not compiled apart for counts of rows that 16 divides."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.norm_tanh_tiles import tuned
from .._shared.norm_tanh_triton import launch
from ._plan import plan_call


@kernel(
    "norm_tanh_mul_add", "fused_triton", version=3, role="fused", language="triton", replay=True,
    note="as version 2, not compiled apart for counts of rows that 16 divides",
)  # fmt: skip
def fused_triton(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float = 1e-5,
    norm: str = "rms",
) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = plan_call(residual, x, gate, weight, bias, eps, norm)
    check_device("norm_tanh_mul_add", "x", x, interpreted=True)
    y = x.new_empty(x.shape)
    launch(
        plan, tuned(plan.hidden, plan.rows), x,
        y=y, norm=norm, weight=weight, bias=bias, eps=eps, residual=residual, gate=gate, any_rows=True,
    )  # fmt: skip
    return y
