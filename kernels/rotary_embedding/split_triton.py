"""The honest split yardstick: one well-tuned launch for q, then one for k, in place."""

from __future__ import annotations

import torch

from fusebench import Bitwise, kernel

from . import _tiles, _triton
from ._arguments import plan_call


@kernel(
    "rotary_embedding", "split_triton", version=1, role="split", language="triton",
    contract=Bitwise("rotary_embedding/split_torch@1"), note="q, then k: a launch each, in place",
)  # fmt: skip
def split_triton(
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
    for tensor, heads in ((q, plan.q), (k, plan.k)):
        if tensor is not None and heads is not None:
            _triton.launch(
                plan, _tiles.per_heads(plan.rows, plan.rotary, heads), (tensor, heads),
                cos_cache=cos_cache, sin_cache=sin_cache, positions=positions, layout=layout, position_offset=position_offset,
            )  # fmt: skip
