"""The honest split yardstick: residual and gate, norm, modulation, one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.modulated_norm_triton import intermediate_dtype, launch
from .._shared.row_tiles import flat, tuned
from ._plan import plan_call


@kernel(
    "residual_gate_norm_scale_shift", "split_triton", version=1, role="split", language="triton",
    note="residual and gate, norm, modulation: three launches",
)  # fmt: skip
def split_triton(
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
    """Returns (y, v), both `[B, S, D]`; between the launches the norm is rounded to the dtype that models keep it in."""
    plan = plan_call(residual, x, gate, weight, bias, scale, shift, eps, norm)
    check_device("residual_gate_norm_scale_shift", "x", x, interpreted=True)
    y, v = x.new_empty(x.shape), x.new_empty(x.shape)
    normed = x.new_empty(x.shape, dtype=intermediate_dtype(x, weight, bias, scale, shift))
    launch(plan, flat(plan.hidden), x, v=v, residual=residual, gate=gate)
    launch(plan, tuned(plan.hidden), v, y=normed, norm=norm, weight=weight, bias=bias, eps=eps)
    launch(plan, flat(plan.hidden), normed, y=y, scale=scale, shift=shift)
    return y, v
