"""comfy-kitchen's adaptive layer and RMS norm of ComfyUI's diffusion models: the whole op in one launch."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "peer_comfy", version=1, role="peer", language="cuda", requires=("comfy_kitchen",), install="comfy-kitchen",
    note="comfy-kitchen adaln, or rms_adaln",
)  # fmt: skip
def peer_comfy(call: Arguments) -> torch.Tensor:
    """Returns y `[B, S, D]`."""
    adaln = library_function("comfy_kitchen:adaln") if call.norm == "layer" else library_function("comfy_kitchen:rms_adaln")
    x, scale, shift = call.x, *(one.unsqueeze(1) if one.dim() == 2 else one for one in (call.scale, call.shift))
    frames = max(one.shape[1] if one.dim() == 4 else 1 for one in (scale, shift))
    if frames > 1:
        batch, tokens, hidden = x.shape
        x = x.view(batch, frames, tokens // frames, hidden)
    y: torch.Tensor = adaln(x, scale, shift, call.eps)
    return y.view(call.x.shape)


@peer_comfy.supports
def _(p: Params) -> bool | str:
    return taken(
        (not p.affine, "comfy-kitchen's adaptive norms take no weight and no bias"),
        (p.modulation_dtype == "activation" or p.dtype == "float32", "comfy-kitchen's kernel is told one dtype, that of x"),
        (p.modulation != "scalar", "comfy-kitchen copies a scalar modulation to the size of x"),
        (not p.strided, "x is a column slice of wider rows, which comfy-kitchen copies first"),
    )
