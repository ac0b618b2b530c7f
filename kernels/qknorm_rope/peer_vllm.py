"""vLLM's RMS norm of q and of k, then its rotary embedding: the three launches that its models run."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "qknorm_rope", "peer_vllm", version=1, role="peer", language="cuda", requires=("vllm",), install="vllm",
    note="vLLM rms_norm of q, of k, then rotary_embedding on the results: three launches; a position offset is a view into the table",
)  # fmt: skip
def peer_vllm(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k; rounds after the norm in either mode."""
    rms_norm = library_function("vllm._custom_ops:rms_norm")
    rotary_embedding = library_function("vllm._custom_ops:rotary_embedding")
    normed = torch.empty_like(call.q), torch.empty_like(call.k)
    rms_norm(normed[0], call.q, call.q_weight, call.eps)
    rms_norm(normed[1], call.k, call.k_weight, call.eps)
    rotary_embedding(call.positions, *normed, call.q.shape[-1], call.cos_sin_cache[call.position_offset :], call.layout == "neox")
    return normed


@peer_vllm.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.affine, "vLLM's rms_norm is called with a weight"),
        (p.position_dtype == "int64", "vLLM takes int64 positions"),
        (not p.packed, "q and k are views of a packed projection, which vLLM splits and copies first"),
    )
