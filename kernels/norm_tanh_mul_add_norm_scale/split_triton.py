"""The honest split yardstick: norm, then tanh, product and sum, then norm and scale: one well-tuned launch each."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.modulated_norm_triton import intermediate_dtype
from .._shared.norm_tanh_tiles import tuned as tuned_gate
from .._shared.norm_tanh_triton import launch
from .._shared.row_tiles import tuned
from ._plan import plan_call


@kernel(
    "norm_tanh_mul_add_norm_scale", "split_triton", version=1, role="split", language="triton",
    note="norm; tanh, product and sum; norm and scale: three launches",
)  # fmt: skip
def split_triton(
    residual: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    weight2: torch.Tensor | None,
    bias2: torch.Tensor | None,
    scale2: torch.Tensor,
    *,
    eps: float = 1e-5,
    norm: str = "rms",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, y2), both `[B, S, D]`; between the launches the norm is rounded to the dtype that models keep it in."""
    plan = plan_call(residual, x, gate, weight, bias, weight2, bias2, scale2, eps, norm)
    check_device("norm_tanh_mul_add_norm_scale", "x", x, interpreted=True)
    y, y2 = x.new_empty(x.shape), x.new_empty(x.shape)
    normed = x.new_empty(x.shape, dtype=intermediate_dtype(x, weight, bias, gate))
    launch(plan, tuned(plan.hidden), x, y=normed, norm=norm, weight=weight, bias=bias, eps=eps)
    launch(plan, tuned_gate(plan.hidden, plan.rows), normed, y=y, residual=residual, gate=gate)
    launch(plan, tuned(plan.hidden), y, y2=y2, norm=norm, weight2=weight2, bias2=bias2, eps=eps, scale2=scale2)
    return y, y2
