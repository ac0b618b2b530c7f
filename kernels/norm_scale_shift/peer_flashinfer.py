"""FlashInfer's RMS norm and layer norm: a part of the op."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_parts import NORM
from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "peer_flashinfer", version=1, role="peer", language="cuda", requires=("flashinfer",), install="flashinfer-python",
    covers=NORM, note="FlashInfer rmsnorm, or layernorm, which takes bfloat16 rows with float32 parameters",
)  # fmt: skip
def peer_flashinfer(call: Arguments) -> torch.Tensor:
    """Returns norm(x) `[B, S, D]`."""
    rows = call.x.view(-1, call.x.shape[-1])
    if call.norm == "rms":
        y: torch.Tensor = library_function("flashinfer.norm:rmsnorm")(rows, call.weight, eps=call.eps)
    else:
        y = library_function("flashinfer.norm:layernorm")(rows, call.weight, call.bias, eps=call.eps)
    return y.view(call.x.shape)


@peer_flashinfer.supports
def _(p: Params) -> bool | str:
    layer, wide = p.norm == "layer", p.modulation_dtype == "float32"
    return taken(
        (p.affine, "FlashInfer's norms need a weight, and the layer norm a bias"),
        (p.dtype != "float32", "FlashInfer takes 16-bit rows"),
        (not layer or (p.dtype == "bfloat16" and wide), "FlashInfer's layernorm takes bfloat16 rows with float32 parameters only"),
        (layer or not wide, "FlashInfer's rmsnorm takes a weight of the rows' dtype"),
        (not p.strided, "x is a column slice of wider rows; its two-dimensional view for FlashInfer would be a copy"),
    )
