"""The checked plan of a call of norm_tanh_mul_add."""

from __future__ import annotations

import torch

from .._shared.layout import layout_of, optional_layout
from .._shared.norm_tanh_arguments import TanhPlan, plan


def plan_call(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    norm: str,
) -> TanhPlan:
    """Raises KernelArgumentError naming the argument, what came and what is accepted."""
    return plan(
        "norm_tanh_mul_add", layout_of(residual), layout_of(x), layout_of(gate), optional_layout(weight),
        optional_layout(bias), None, None, None, eps, norm,
    )  # fmt: skip
