"""SGLang's RMS norm over a whole row fused with the interleaved rotation: the kernel of its Wan models, of q and then of k."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params

_WIDEST = 6144
"""Channels of a row that the kernel takes."""


@kernel(
    "qknorm_across_heads_rope", "peer_sglang", version=1, role="peer", language="cuda", requires=("sglang",), install="sglang",
    note="SGLang fused_rmsnorm_interleaved_rope_ of q, then of k: two launches in place; it rounds after the norm too",
)  # fmt: skip
def peer_sglang(call: Arguments) -> None:
    """Overwrites q and k."""
    fused = library_function("sglang.kernels.ops.diffusion:fused_rmsnorm_interleaved_rope_")
    head_dim = call.q.shape[-1]
    for x, weight in ((call.q, call.q_weight), (call.k, call.k_weight)):
        fused(x.flatten(1), weight, call.cos_sin_cache, call.eps, head_dim)


@peer_sglang.supports
def _(p: Params) -> bool | str:
    widths = [heads * p.head_dim for heads in (p.heads, p.key_heads)]
    # Lanes that share a row hold eight neighbouring channels each; their columns must be whole heads.
    lanes = [8 if width <= 64 else 16 if width <= 128 else 32 if width <= 3072 else 64 for width in widths]
    return taken(
        (p.dtype != "float32", "SGLang takes bfloat16 and float16"),
        (p.affine, "SGLang needs both weights"),
        (p.cache_dtype == "float32", "SGLang takes a float32 table"),
        (max(widths) <= _WIDEST, f"SGLang takes rows of at most {_WIDEST} channels, not {max(widths)}"),
        (
            all(8 * count % p.head_dim == 0 for count in lanes),
            f"SGLang takes no head_dim {p.head_dim} in rows of {widths[0]} and {widths[1]}",
        ),
    )
