"""Liger-Kernel's RoPE: the whole op in one launch, in place."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Params


@kernel(
    "rotary_embedding", "peer_liger", version=1, role="peer", language="triton", requires=("liger_kernel",), install="liger-kernel",
    note="Liger rope, in place; torch gathers the rows of the tables first, where positions are given",
)  # fmt: skip
def peer_liger(
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
    rope = library_function("liger_kernel.transformers.functional:liger_rope")
    size = head_dim or q.shape[-1]
    assert k is not None, "declined by supports"
    # Liger takes [batch, heads, tokens, D] as attention does, and works on the [batch, tokens, heads, D] that lies beneath.
    q_heads, k_heads = ((x if x.dim() == 4 else x.view(1, x.shape[0], -1, size)).transpose(1, 2) for x in (q, k))
    halves = cos_cache.chunk(2, dim=-1) if sin_cache is None else (cos_cache, sin_cache)
    tables = [half[position_offset:] for half in halves]
    if positions is not None:
        tables = [table.index_select(0, positions) for table in tables]
    samples, tokens = q_heads.shape[0], q_heads.shape[2]
    cos, sin = (table.view(samples, tokens, -1) if positions is not None else table[:tokens].unsqueeze(0) for table in tables)
    rope(q_heads, k_heads, cos, sin, rotary_dim=2 * cos.shape[-1])


@peer_liger.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.layout == "neox", "Liger's rope pairs (i, i + R/2), the neox layout, only"),
        (p.key_heads > 0, "Liger rotates q and k together"),
        (p.cache_dtype == "float32" or p.dtype == "float32", "Liger rotates in the table's dtype, which loses digits in 16 bits"),
        (p.positions != "index" or p.caches == "separate", "Liger copies the halves of a joint table first"),
        (not p.packed, "q and k are views of a packed projection, which Liger copies first and rotates there"),
    )
