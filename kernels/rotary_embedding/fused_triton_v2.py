"""The tuned fusion: a warp per block of heads of one token, and blocks so small that a handful of tokens fills the GPU."""

from __future__ import annotations

import torch

from fusebench import Bitwise, kernel

from . import _tiles, _triton
from ._arguments import plan_call


@kernel(
    "rotary_embedding", "fused_triton", version=2, role="fused", language="triton", replay=True,
    contract=Bitwise("rotary_embedding/split_torch@1"), note="parallel over heads as well as tokens; smaller blocks for few tokens",
)  # fmt: skip
def fused_triton(
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
    plan = plan_call(q, k, cos_cache, sin_cache, positions, layout, head_dim, position_offset)
    rotated = [(q, plan.q)] if k is None or plan.k is None else [(q, plan.q), (k, plan.k)]
    _triton.launch(
        plan, _tiles.per_heads(plan.rows, plan.rotary, *(heads for _, heads in rotated)), *rotated,
        cos_cache=cos_cache, sin_cache=sin_cache, positions=positions, layout=layout, position_offset=position_offset,
    )  # fmt: skip
