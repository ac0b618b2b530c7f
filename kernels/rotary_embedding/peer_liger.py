"""Liger-Kernel's RoPE: the whole op in one launch, in place."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "rotary_embedding", "peer_liger", version=1, role="peer", language="triton", requires=("liger_kernel",), install="liger-kernel",
    note="Liger rope, in place; torch gathers the rows of the tables first, where positions are given",
)  # fmt: skip
def peer_liger(call: Arguments) -> None:
    """Overwrites q and k."""
    rope = library_function("liger_kernel.transformers.functional:liger_rope")
    size = call.head_dim or call.q.shape[-1]
    assert call.k is not None, "declined by supports"
    # Liger takes [batch, heads, tokens, D] as attention does, and works on the [batch, tokens, heads, D] that lies beneath.
    q_heads, k_heads = ((x if x.dim() == 4 else x.view(1, x.shape[0], -1, size)).transpose(1, 2) for x in (call.q, call.k))
    halves = call.cos_cache.chunk(2, dim=-1) if call.sin_cache is None else (call.cos_cache, call.sin_cache)
    tables = [half[call.position_offset :] for half in halves]
    if call.positions is not None:
        tables = [table.index_select(0, call.positions) for table in tables]
    samples, tokens = q_heads.shape[0], q_heads.shape[2]
    cos, sin = (table.view(samples, tokens, -1) if call.positions is not None else table[:tokens].unsqueeze(0) for table in tables)
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
