"""SGLang's fused residual and two-way modulation of its diffusion models: the whole op in one launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .._shared.select01.plan import rows_of
from .op import Arguments, Params


@kernel(
    "residual_norm_scale_shift_gate_select01", "peer_sglang", version=1, role="peer", language="triton", requires=("sglang",),
    install="sglang", note="SGLang fuse_residual_layernorm_scale_shift_gate_select01_kernel",
)  # fmt: skip
def peer_sglang(call: Arguments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (y, v, gate_out), all `[B, L, C]`."""
    fused = library_function(
        "sglang.kernels.ops.diffusion:fuse_residual_layernorm_scale_shift_gate_select01_kernel",
        "sglang.jit_kernel.diffusion.triton.scale_shift:fuse_residual_layernorm_scale_shift_gate_select01_kernel",
    )
    y, v, gate_out = fused(call.x, call.residual, call.residual_gate, call.weight, call.bias, *rows_of(call), call.index, call.eps)
    return y, v, gate_out


@peer_sglang.supports
def _(p: Params) -> bool | str:
    return taken((not p.strided, "x, residual, rows or index are views, which SGLang refuses or copies first"))
