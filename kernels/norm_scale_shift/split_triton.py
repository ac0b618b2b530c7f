"""The honest split yardstick: one well-tuned norm launch, then one well-tuned modulation launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.modulated_norm_triton import intermediate_dtype, launch
from .._shared.row_tiles import flat, tuned
from ._plan import plan_call


@kernel("norm_scale_shift", "split_triton", version=1, role="split", language="triton", note="norm, then modulation: two launches")
def split_triton(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    eps: float = 1e-6,
    norm: str = "layer",
) -> torch.Tensor:
    """Returns y `[B, S, D]`; between the launches the norm is rounded to the dtype that models keep it in."""
    plan = plan_call(x, weight, bias, scale, shift, eps, norm)
    check_device("norm_scale_shift", "x", x, interpreted=True)
    normed = x.new_empty(x.shape, dtype=intermediate_dtype(x, weight, bias, scale, shift))
    y = x.new_empty(x.shape)
    launch(plan, tuned(plan.hidden), x, y=normed, norm=norm, weight=weight, bias=bias, eps=eps)
    launch(plan, flat(plan.hidden), normed, y=y, scale=scale, shift=shift)
    return y
