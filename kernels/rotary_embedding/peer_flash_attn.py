"""flash-attn's rotary embedding of q, then of k: one launch each, in place."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Params


@kernel(
    "rotary_embedding", "peer_flash_attn", version=1, role="peer", language="triton", requires=("flash_attn",), install="flash-attn",
    note="flash-attn apply_rotary_emb of q, then of k: two launches; it numbers the tokens itself",
)  # fmt: skip
def peer_flash_attn(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor | None,
    positions: torch.Tensor | None,
    *,
    layout: str = "interleaved",
    head_dim: int = 0,
    position_offset: int = 0,
) -> None:
    """Overwrites q and k."""
    apply_rotary_emb = library_function("flash_attn.layers.rotary:apply_rotary_emb")
    size = head_dim or q.shape[-1]
    for x in (q, k):
        if x is not None:
            samples = x if x.dim() == 4 else x.view(1, x.shape[0], -1, size)
            interleaved = layout == "interleaved"
            apply_rotary_emb(samples, cos_cache, sin_cache, interleaved=interleaved, inplace=True, seqlen_offsets=position_offset)


@peer_flash_attn.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.head_dim <= 256, f"flash-attn takes head_dim up to 256, not {p.head_dim}"),
        (p.positions == "index", "flash-attn numbers the tokens of a sample itself and takes no positions"),
        (p.caches == "separate", "flash-attn takes separate tables and copies the halves of a joint one first"),
        (p.cache_dtype == "activation" or p.dtype == "float32", "flash-attn takes tables of the activations' dtype"),
    )
