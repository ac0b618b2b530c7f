"""Liger-Kernel's modulated RMS norm, which is the whole op for an RMS norm, and its plain norms, which are a part of it."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_parts import NORM
from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "peer_liger", version=1, role="peer", language="triton", requires=("liger_kernel",), install="liger-kernel",
    note="Liger modulated_rms_norm (its default llama casting: rounds after the norm, the weight and the scale, as models do)",
)  # fmt: skip
def peer_liger(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    modulated = library_function("liger_kernel.transformers.functional:liger_modulated_rms_norm")
    y: torch.Tensor = modulated(call.x, call.weight, call.scale, call.shift, call.eps)
    return y


@peer_liger.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.norm == "rms", "Liger modulates an RMS norm only"),
        (p.modulation != "scalar", "Liger takes a scale and shift of whole rows, not one value for all channels"),
        (not p.strided, "x is a column slice of wider rows, which Liger copies first"),
    )


@kernel(
    "norm_scale_shift", "peer_liger_norm", version=1, role="peer", language="triton", requires=("liger_kernel",), install="liger-kernel",
    covers=NORM, note="Liger layer_norm, or rms_norm in gemma casting (float32 throughout); keeps the rows' statistics for a backward pass",
)  # fmt: skip
def peer_liger_norm(call: Arguments) -> torch.Tensor:
    """Returns norm(x) `[B, S, D]`."""
    if call.norm == "rms":
        y: torch.Tensor = library_function("liger_kernel.transformers.functional:liger_rms_norm")(
            call.x, call.weight, call.eps, casting_mode="gemma"
        )
    else:
        y = library_function("liger_kernel.transformers.functional:liger_layer_norm")(call.x, call.weight, call.bias, call.eps)
    return y


@peer_liger_norm.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.affine or p.norm == "rms", "Liger's layer norm needs a weight and a bias"),
        (not p.strided, "x is a column slice of wider rows, which Liger copies first"),
    )
