"""quack's RMS norm with a residual: a part of the op."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.norm_parts import ADD_NORM
from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "residual_gate_norm_scale_shift", "peer_quack", version=1, role="peer", language="cuda", requires=("quack",),
    install="quack-kernels", covers=ADD_NORM, note="quack rmsnorm with its residual and prenorm arguments",
)  # fmt: skip
def peer_quack(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (norm(v), v) with v = residual + x, both `[B, S, D]`."""
    rmsnorm = library_function("quack.rmsnorm:rmsnorm", "quack:rmsnorm")
    y, v = rmsnorm(call.x, call.weight, residual=call.residual, eps=call.eps, prenorm=True)
    return y, v


@peer_quack.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.norm == "rms", "quack adds a residual before an RMS norm only"),
        (not p.strided, "x and residual are column slices of wider rows, which quack copies into rows first"),
    )
