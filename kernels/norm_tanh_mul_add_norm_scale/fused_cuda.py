"""The fusion in CUDA C++ (`_shared/norm_tanh.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.norm_tanh_cuda import launch
from ._plan import plan_call


@kernel(
    "norm_tanh_mul_add_norm_scale", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a few warps per row and no idle lanes, row in registers, 16-byte loads, persistent grid",
)  # fmt: skip
def fused_cuda(
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
    """Returns (y, y2), both `[B, S, D]`."""
    plan = plan_call(residual, x, gate, weight, bias, weight2, bias2, scale2, eps, norm)
    check_device("norm_tanh_mul_add_norm_scale", "x", x, interpreted=False)
    y, y2 = x.new_empty(x.shape), x.new_empty(x.shape)
    launch(
        plan, x,
        y=y, y2=y2, norm=norm, weight=weight, bias=bias, eps=eps, residual=residual, gate=gate,
        weight2=weight2, bias2=bias2, scale2=scale2,
    )  # fmt: skip
    return y, y2
