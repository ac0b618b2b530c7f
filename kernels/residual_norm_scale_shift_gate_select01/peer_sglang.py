"""SGLang's fused residual and two-way modulation of its diffusion models: the whole op in one launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Params


@kernel(
    "residual_norm_scale_shift_gate_select01", "peer_sglang", version=1, role="peer", language="triton", requires=("sglang",),
    install="sglang", note="SGLang fuse_residual_layernorm_scale_shift_gate_select01_kernel",
)  # fmt: skip
def peer_sglang(
    residual: torch.Tensor,
    x: torch.Tensor,
    residual_gate: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale0: torch.Tensor,
    shift0: torch.Tensor,
    gate0: torch.Tensor,
    scale1: torch.Tensor,
    shift1: torch.Tensor,
    gate1: torch.Tensor,
    index: torch.Tensor,
    *,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), all `[B, L, C]`."""
    fused = library_function(
        "sglang.kernels.ops.diffusion:fuse_residual_layernorm_scale_shift_gate_select01_kernel",
        "sglang.jit_kernel.diffusion.triton.scale_shift:fuse_residual_layernorm_scale_shift_gate_select01_kernel",
    )
    rows = (scale0, shift0, gate0, scale1, shift1, gate1)
    y, v, gate_out = fused(x, residual, residual_gate, weight, bias, *rows, index, eps)
    return y, v, gate_out


@peer_sglang.supports
def _(p: Params) -> bool | str:
    return taken((not p.strided, "x, residual, rows or index are views, which SGLang refuses or copies first"))
