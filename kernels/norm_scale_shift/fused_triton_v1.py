"""The simplest right fusion: one row per program, the whole row in one block."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.modulated_norm_triton import launch
from .._shared.row_tiles import whole_row
from ._plan import plan_call


@kernel(
    "norm_scale_shift",
    "fused_triton",
    version=1,
    role="fused",
    language="triton",
    replay=True,
    note="one row per program, in one masked block",
)
def fused_triton(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    eps: float = 1e-6,
    norm: str = "layer",
) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    plan = plan_call(x, weight, bias, scale, shift, eps, norm)
    check_device("norm_scale_shift", "x", x, interpreted=True)
    y = x.new_empty(x.shape)
    launch(plan, whole_row(plan.hidden), x, y=y, norm=norm, weight=weight, bias=bias, eps=eps, scale=scale, shift=shift)
    return y
