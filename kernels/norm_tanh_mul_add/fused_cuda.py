"""The fusion in CUDA C++ (`_shared/norm_tanh.cu`), compiled by NVRTC for each shape's constants."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.layout import check_device
from .._shared.norm_tanh_cuda import launch
from ._plan import plan_call


@kernel(
    "norm_tanh_mul_add", "fused_cuda", version=1, role="fused", language="cuda", replay=True, requires=("cuda.core",),
    note="a few warps per row and no idle lanes, row in registers, 16-byte loads, persistent grid",
)  # fmt: skip
def fused_cuda(
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
    check_device("norm_tanh_mul_add", "x", x, interpreted=False)
    y = x.new_empty(x.shape)
    launch(
        plan, x,
        y=y, norm=norm, weight=weight, bias=bias, eps=eps, residual=residual, gate=gate,
    )  # fmt: skip
    return y
