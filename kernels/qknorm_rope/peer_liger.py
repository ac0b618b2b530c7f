"""Liger-Kernel's RMS norm of q and of k, then its RoPE: the three launches of a model that it has patched."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "qknorm_rope", "peer_liger", version=1, role="peer", language="triton", requires=("liger_kernel",), install="liger-kernel",
    note="Liger rms_norm (gemma casting: float32 throughout) of q, of k, then rope on the results; torch gathers the table's rows first",
)  # fmt: skip
def peer_liger(call: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k; rounds after the norm in either mode."""
    rms_norm = library_function("liger_kernel.transformers.functional:liger_rms_norm")
    rope = library_function("liger_kernel.transformers.functional:liger_rope")
    rotary = call.cos_sin_cache.shape[1]
    cos, sin = (half.index_select(0, call.positions) for half in call.cos_sin_cache[call.position_offset :].chunk(2, dim=-1))
    normed = (rms_norm(x, weight, call.eps, casting_mode="gemma") for x, weight in ((call.q, call.q_weight), (call.k, call.k_weight)))
    # Liger takes [batch, heads, tokens, D] as attention does, and works on the [batch, tokens, heads, D] that lies beneath.
    q_heads, k_heads = (x.unsqueeze(0).transpose(1, 2) for x in normed)
    turned = rope(q_heads, k_heads, cos.unsqueeze(0), sin.unsqueeze(0), rotary_dim=rotary)
    q_turned, k_turned = (x.transpose(1, 2).squeeze(0) for x in turned)
    return q_turned, k_turned


@peer_liger.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.layout == "neox", "Liger's rope pairs (i, i + R/2), the neox layout, only"),
        (p.cache_dtype == "float32" or p.dtype == "float32", "Liger rotates in the table's dtype, which loses digits in 16 bits"),
        (not p.packed, "q and k are views of a packed projection, which Liger copies first"),
    )
