"""comfy-kitchen's fused QK norm and RoPE of ComfyUI's diffusion models, in place, on rotation matrices made of the table."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params

_WARP = 32
"""Threads that share a head; D must be a multiple, or the library takes another way."""


@kernel(
    "qknorm_rope", "peer_comfy", version=1, role="peer", language="cuda", requires=("comfy_kitchen",), install="comfy-kitchen",
    note="comfy-kitchen rms_rope_, or rms_rope_split_half_; torch first makes the rotation matrices that its users keep for a whole step",
)  # fmt: skip
def peer_comfy(call: Arguments) -> None:
    """Overwrites q and k; rounds after the norm in either mode."""
    tokens, rotary = call.positions.shape[0], call.cos_sin_cache.shape[1]
    cos, sin = call.cos_sin_cache[call.position_offset :].index_select(0, call.positions).chunk(2, dim=-1)
    matrices = torch.stack((cos, -sin, sin, cos), dim=-1).view(1, tokens, 1, rotary // 2, 2, 2)
    rows = call.q.unsqueeze(0), call.k.unsqueeze(0)  # [batch, tokens, heads, D]
    if call.layout == "interleaved":
        library_function("comfy_kitchen:rms_rope_")(*rows, matrices, call.q_weight, call.k_weight, call.eps)
    else:
        turned = 0 if rotary == call.q.shape[-1] else rotary
        library_function("comfy_kitchen:rms_rope_split_half_")(*rows, matrices, call.q_weight, call.k_weight, call.eps, turned)


@peer_comfy.supports
def _(p: Params) -> bool | str:
    whole = p.rotary == p.head_dim
    return taken(
        (p.head_dim % _WARP == 0, f"comfy-kitchen's kernel takes multiples of {_WARP} dimensions, not {p.head_dim}"),
        (p.dtype != "float32", "comfy-kitchen's kernel takes bfloat16 and float16"),
        (p.affine, "comfy-kitchen needs both weights"),
        (p.cache_dtype == "float32", "comfy-kitchen is used with float32 matrices"),
        (whole or p.layout == "neox", "comfy-kitchen's interleaved layout rotates whole heads"),
        (whole or p.key_heads == p.heads, "comfy-kitchen rotates a part of a head in torch where q and k differ in heads"),
    )
