"""The checked plan of a call of residual_gate_norm_scale_shift."""

from __future__ import annotations

import torch

from .._shared.layout import layout_of, optional_layout
from .._shared.norm_arguments import Plan, plan


def plan_call(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
    norm: str,
) -> Plan:
    """Raises KernelArgumentError naming the argument, what came and what is accepted."""
    return plan(
        "residual_gate_norm_scale_shift", layout_of(x), layout_of(residual), optional_layout(gate), optional_layout(weight),
        optional_layout(bias), layout_of(scale), layout_of(shift), eps, norm,
    )  # fmt: skip
