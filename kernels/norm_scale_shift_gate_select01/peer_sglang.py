"""SGLang's fused two-way modulation of its diffusion models: the whole op in one launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Params


@kernel(
    "norm_scale_shift_gate_select01", "peer_sglang", version=1, role="peer", language="triton", requires=("sglang",), install="sglang",
    note="SGLang fuse_layernorm_scale_shift_gate_select01_kernel",
)  # fmt: skip
def peer_sglang(
    x: torch.Tensor,
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, gate_out), both `[B, L, C]`."""
    fused = library_function(
        "sglang.kernels.ops.diffusion:fuse_layernorm_scale_shift_gate_select01_kernel",
        "sglang.jit_kernel.diffusion.triton.scale_shift:fuse_layernorm_scale_shift_gate_select01_kernel",
    )
    y, gate_out = fused(x, weight, bias, scale0, shift0, gate0, scale1, shift1, gate1, index, eps)
    return y, gate_out


@peer_sglang.supports
def _(p: Params) -> bool | str:
    return taken((not p.strided, "x, rows or index are views, which SGLang refuses or copies first"))
