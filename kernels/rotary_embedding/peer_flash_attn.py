"""flash-attn's rotary embedding of q, then of k: one launch each, in place."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "rotary_embedding", "peer_flash_attn", version=1, role="peer", language="triton", requires=("flash_attn",), install="flash-attn",
    note="flash-attn apply_rotary_emb of q, then of k: two launches; it numbers the tokens itself",
)  # fmt: skip
def peer_flash_attn(call: Arguments) -> None:
    """Overwrites q and k."""
    apply_rotary_emb = library_function("flash_attn.layers.rotary:apply_rotary_emb")
    size = call.head_dim or call.q.shape[-1]
    for x in (call.q, call.k):
        if x is not None:
            samples = x if x.dim() == 4 else x.view(1, x.shape[0], -1, size)
            interleaved = call.layout == "interleaved"
            apply_rotary_emb(
                samples, call.cos_cache, call.sin_cache, interleaved=interleaved, inplace=True, seqlen_offsets=call.position_offset
            )


@peer_flash_attn.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.head_dim <= 256, f"flash-attn takes head_dim up to 256, not {p.head_dim}"),
        (p.positions == "index", "flash-attn numbers the tokens of a sample itself and takes no positions"),
        (p.caches == "separate", "flash-attn takes separate tables and copies the halves of a joint one first"),
        (p.cache_dtype == "activation" or p.dtype == "float32", "flash-attn takes tables of the activations' dtype"),
    )
