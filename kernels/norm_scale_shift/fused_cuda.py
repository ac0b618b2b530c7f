"""The fusion in CUDA C++ (`_shared/modulated_norm.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.modulated_norm_cuda import launch
from ._plan import plan_call


@kernel(
    "norm_scale_shift", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a warp or a few per row, row in registers, 16-byte loads, persistent grid",
)  # fmt: skip
def fused_cuda(
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
    check_device("norm_scale_shift", "x", x, interpreted=False)
    y = x.new_empty(x.shape)
    launch(plan, x, y=y, norm=norm, weight=weight, bias=bias, eps=eps, scale=scale, shift=shift)
    return y
