"""Liger-Kernel's residual addition with RMS norm: a part of the op."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_parts import ADD_NORM
from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "residual_gate_norm_scale_shift", "peer_liger", version=1, role="peer", language="triton", requires=("liger_kernel",),
    install="liger-kernel", covers=ADD_NORM, note="Liger fused_add_rms_norm in gemma casting (float32 throughout)",
)  # fmt: skip
def peer_liger(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (norm(v), v) with v = residual + x, both `[B, S, D]`."""
    fused = library_function("liger_kernel.transformers.functional:liger_fused_add_rms_norm")
    y, v = fused(call.x, call.residual, call.weight, call.eps, casting_mode="gemma", in_place=False)
    return y, v


@peer_liger.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.norm == "rms", "Liger adds a residual before an RMS norm only"),
        (p.affine, "Liger's fused_add_rms_norm needs a weight"),
        (not p.strided, "x and residual are column slices of wider rows, which Liger copies first"),
    )
