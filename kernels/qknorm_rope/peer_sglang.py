"""SGLang's fused QK norm and RoPE of its diffusion models: the whole op in one launch, in place."""

from __future__ import annotations

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params

_LANES = 32
"""Threads that share a head; each holds D / 32 neighbouring elements, which must be rotated all or none."""


@kernel(
    "qknorm_rope", "peer_sglang", version=1, role="peer", language="cuda", requires=("sglang",), install="sglang",
    note="SGLang fused_inplace_qknorm_rope; a position offset is a view into the table",
)  # fmt: skip
def peer_sglang(call: Arguments) -> None:
    """Overwrites q and k."""
    fused = library_function(
        "sglang.kernels.ops.diffusion:fused_inplace_qknorm_rope",
        "sglang.kernels.ops.diffusion.qknorm_rope:fused_inplace_qknorm_rope",
        "sglang.jit_kernel.diffusion.qknorm_rope:fused_inplace_qknorm_rope",
    )
    table = call.cos_sin_cache[call.position_offset :]
    head_dim, rope_dim = call.q.shape[-1], call.cos_sin_cache.shape[-1]
    fused(
        call.q,
        call.k,
        call.q_weight,
        call.k_weight,
        table,
        call.positions,
        is_neox=call.layout == "neox",
        eps=call.eps,
        head_dim=head_dim,
        rope_dim=rope_dim,
    )


@peer_sglang.supports
def _(p: Params) -> bool | str:
    width = p.head_dim // _LANES
    lanes = p.rotary // max(1, width)
    return taken(
        (p.head_dim in (64, 128, 256), f"SGLang takes head_dim 64, 128 and 256, not {p.head_dim}"),
        (p.dtype != "float32", "SGLang takes bfloat16 and float16"),
        (p.affine, "SGLang needs both weights"),
        (p.cache_dtype == "float32", "SGLang takes a float32 table"),
        (p.mode == "default", "SGLang rounds once; the mode round_norm asks for another rounding"),
        (p.rotary % max(1, width) == 0, f"SGLang rotates multiples of {width} dimensions, not {p.rotary}"),
        (p.layout == "interleaved" or (lanes >= 2 and lanes & (lanes - 1) == 0), f"SGLang's neox layout does not take rope_dim {p.rotary}"),
    )
