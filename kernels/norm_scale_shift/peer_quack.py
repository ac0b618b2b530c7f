"""quack's RMS norm and layer norm: a part of the op."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_parts import NORM
from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "norm_scale_shift", "peer_quack", version=1, role="peer", language="cuda", requires=("quack",), install="quack-kernels", covers=NORM,
    note="quack rmsnorm, or layernorm_fwd, which takes float32 parameters",
)  # fmt: skip
def peer_quack(call: Arguments) -> torch.Tensor:
    """Returns norm(x) `[B, S, D]`."""
    if call.norm == "rms":
        y: torch.Tensor = library_function("quack.rmsnorm:rmsnorm", "quack:rmsnorm")(call.x, call.weight, eps=call.eps)
        return y
    rows = call.x.view(-1, call.x.shape[-1])
    y = library_function("quack.rmsnorm:layernorm_fwd")(rows, call.weight, bias=call.bias, eps=call.eps)
    return y.view(call.x.shape)


@peer_quack.supports
def _(p: Params) -> bool | str:
    layer, wide = p.norm == "layer", p.modulation_dtype == "float32" or p.dtype == "float32"
    return taken(
        (not layer or (p.affine and wide), "quack's layer norm needs a weight in float32"),
        (not p.strided, "x is a column slice of wider rows, which quack copies into rows first"),
    )
