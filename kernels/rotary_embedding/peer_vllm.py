"""vLLM's rotary embedding: the whole op in one launch, in place."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.peers import library_function, taken
from .op import Params


@kernel(
    "rotary_embedding", "peer_vllm", version=1, role="peer", language="cuda", requires=("vllm",), install="vllm",
    note="vLLM rotary_embedding; a position offset is a view into the table",
)  # fmt: skip
def peer_vllm(
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
    rotary_embedding = library_function("vllm._custom_ops:rotary_embedding")
    size = head_dim or q.shape[-1]
    assert positions is not None, "declined by supports"
    q_rows = q.view(positions.shape[0], -1)
    k_rows = None if k is None else k.view(positions.shape[0], -1)
    rotary_embedding(positions, q_rows, k_rows, size, cos_cache[position_offset:], layout == "neox")


@peer_vllm.supports
def _(p: Params) -> bool | str:
    return taken(
        (p.caches == "joint", "vLLM takes one joint table"),
        (p.positions == "int64", "vLLM takes int64 positions"),
        (not (p.packed and p.rank == 4), "q and k are four-dimensional views, which vLLM's rows of tokens may not fit"),
    )
