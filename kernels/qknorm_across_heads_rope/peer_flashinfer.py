"""FlashInfer's RMS norm of q and of k, then its RoPE: the three launches that its users run."""

from __future__ import annotations

import functools

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Arguments, Params


@kernel(
    "qknorm_across_heads_rope", "peer_flashinfer", version=1, role="peer", language="cuda", requires=("flashinfer",),
    install="flashinfer-python",
    note="FlashInfer rmsnorm of q, of k, then RoPE, all in place: three launches; positions made once",
)  # fmt: skip
def peer_flashinfer(call: Arguments) -> None:
    """Overwrites q and k; rounds after the norm."""
    rmsnorm = library_function("flashinfer.norm:rmsnorm")
    rope = library_function("flashinfer.rope:apply_rope_with_cos_sin_cache_inplace")
    rows = call.q.flatten(1), call.k.flatten(1)
    for x, weight in zip(rows, (call.q_weight, call.k_weight), strict=True):
        rmsnorm(x, weight, eps=call.eps, out=x)
    positions = _positions(call.q.shape[0], call.cos_sin_cache.shape[0], call.q.device)
    rope(positions, *rows, call.q.shape[-1], call.cos_sin_cache, is_neox=False)


@functools.lru_cache(maxsize=8)
def _positions(rows: int, tokens: int, device: torch.device) -> torch.Tensor:
    """Row of the table of each of N tokens, which a model keeps."""
    return torch.arange(tokens, device=device).repeat(rows // max(1, tokens))


@peer_flashinfer.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.head_dim in (64, 128, 256), f"FlashInfer's RoPE takes head_dim 64, 128 and 256, not {p.head_dim}"),
        (p.dtype != "float32", "FlashInfer takes bfloat16 and float16"),
        (p.affine, "FlashInfer's rmsnorm needs a weight"),
        (p.cache_dtype == "float32", "FlashInfer takes a float32 table"),
    )
