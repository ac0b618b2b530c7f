"""The simplest right fusion: one row per program, the whole row in one block."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.modulated_norm_triton import launch
from .._shared.row_tiles import whole_row
from ._plan import plan_call


@kernel(
    "residual_gate_norm_scale_shift", "fused_triton", version=1, role="fused", language="triton", replay=True,
    note="one row per program, in one masked block",
)  # fmt: skip
def fused_triton(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    eps: float = 1e-6,
    norm: str = "layer",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    plan = plan_call(residual, x, gate, weight, bias, scale, shift, eps, norm)
    check_device("residual_gate_norm_scale_shift", "x", x, interpreted=True)
    y, v = x.new_empty(x.shape), x.new_empty(x.shape)
    launch(
        plan, whole_row(plan.hidden), x,
        y=y, v=v, residual=residual, gate=gate, norm=norm, weight=weight, bias=bias, eps=eps, scale=scale, shift=shift,
    )  # fmt: skip
    return y, v
