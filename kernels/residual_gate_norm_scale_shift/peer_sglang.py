"""SGLang's fused residual, norm, scale and shift of its diffusion models: the whole op in one launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "residual_gate_norm_scale_shift", "peer_sglang", version=1, role="peer", language="cuda", requires=("sglang",), install="sglang",
    note="SGLang fused_scale_residual_norm_scale_shift (CuTe DSL)",
)  # fmt: skip
def peer_sglang(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y, v), both `[B, S, D]`."""
    fused = library_function(
        "sglang.kernels.ops.diffusion:fused_scale_residual_norm_scale_shift",
        "sglang.kernels.ops.diffusion.cutedsl.scale_residual_norm_scale_shift:fused_scale_residual_norm_scale_shift",
        "sglang.jit_kernel.diffusion.cutedsl.scale_residual_norm_scale_shift:fused_scale_residual_norm_scale_shift",
    )
    y, v = fused(call.residual, call.x, call.gate, call.weight, call.bias, call.scale, call.shift, call.norm, call.eps)
    return y, v


@peer_sglang.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.hidden % 256 == 0 and p.hidden <= 8192, f"SGLang takes multiples of 256 up to 8192 channels, not {p.hidden}"),
        (not p.strided, "x and residual are column slices of wider rows; SGLang is used on contiguous ones"),
    )
