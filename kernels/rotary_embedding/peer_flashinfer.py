"""FlashInfer's RoPE of q and k: the whole op in one launch, in place."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "rotary_embedding", "peer_flashinfer", version=1, role="peer", language="cuda", requires=("flashinfer",), install="flashinfer-python",
    note="FlashInfer apply_rope_with_cos_sin_cache_inplace; a position offset is a view into the table",
)  # fmt: skip
def peer_flashinfer(call: Arguments) -> None:
    """Overwrites q and k."""
    rope = library_function("flashinfer.rope:apply_rope_with_cos_sin_cache_inplace")
    size = call.head_dim or call.q.shape[-1]
    assert call.k is not None, "declined by supports"
    assert call.positions is not None, "declined by supports"
    q_rows, k_rows = (x.view(call.positions.shape[0], -1) for x in (call.q, call.k))
    rope(call.positions, q_rows, k_rows, size, call.cos_cache[call.position_offset :], is_neox=call.layout == "neox")


@peer_flashinfer.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.key_heads > 0, "FlashInfer rotates q and k together"),
        (p.head_dim in (64, 128, 256), f"FlashInfer takes head_dim 64, 128 and 256, not {p.head_dim}"),
        (p.dtype != "float32", "FlashInfer takes bfloat16 and float16"),
        (p.caches == "joint" and p.cache_dtype == "float32", "FlashInfer takes one joint float32 table"),
        (p.positions != "index", "FlashInfer needs positions"),
        (not (p.packed and p.rank == 4), "q and k are four-dimensional views, which FlashInfer's rows of tokens may not fit"),
    )
