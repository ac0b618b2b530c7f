"""quack's RMS norm of q and of k. quack has no rotary embedding, so this covers a part of the op."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from ._parts import NORM
from .op import Arguments, Params


@kernel(
    "qknorm_rope", "peer_quack", version=1, role="peer", language="cuda", requires=("quack",), install="quack-kernels", covers=NORM,
    note="quack rmsnorm of q and of k: two launches",
)  # fmt: skip
def peer_quack(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns q and k normalised."""
    rmsnorm = library_function("quack.rmsnorm:rmsnorm", "quack:rmsnorm")
    return rmsnorm(call.q, call.q_weight, eps=call.eps), rmsnorm(call.k, call.k_weight, eps=call.eps)


@peer_quack.supports
def _(p: Params) -> bool | str:
    return taken((not p.packed, "q and k are views of a packed projection, which quack copies into rows first"))
