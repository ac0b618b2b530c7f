"""FlashInfer's RMS norm of q and of k, then its RoPE: the three launches that its users run."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Params


@kernel(
    "qknorm_rope", "peer_flashinfer", version=1, role="peer", language="cuda", requires=("flashinfer",), install="flashinfer-python",
    note="FlashInfer rmsnorm of q, of k, then RoPE, all in place: three launches; a position offset is a view into the table",
)  # fmt: skip
def peer_flashinfer(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    eps: float,
    layout: str,
    position_offset: int = 0,
    round_norm: bool = False,
) -> None:
    """Overwrites q and k; rounds after the norm in either mode."""
    rmsnorm = library_function("flashinfer.norm:rmsnorm")
    rope = library_function("flashinfer.rope:apply_rope_with_cos_sin_cache_inplace")
    tokens, _, head_dim = q.shape
    for x, weight in ((q, q_weight), (k, k_weight)):
        rows = x.view(-1, head_dim)
        rmsnorm(rows, weight, eps=eps, out=rows)
    table = cos_sin_cache[position_offset:]
    rope(positions, q.view(tokens, -1), k.view(tokens, -1), head_dim, table, is_neox=layout == "neox")


@peer_flashinfer.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.head_dim in (64, 128, 256), f"FlashInfer's RoPE takes head_dim 64, 128 and 256, not {p.head_dim}"),
        (p.dtype != "float32", "FlashInfer takes bfloat16 and float16"),
        (p.affine, "FlashInfer's rmsnorm needs a weight"),
        (p.cache_dtype == "float32", "FlashInfer takes a float32 table"),
        (not p.packed, "q and k are views of a packed projection; FlashInfer's rmsnorm takes rows of one stride"),
    )
