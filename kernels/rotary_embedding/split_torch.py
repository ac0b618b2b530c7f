"""The eager chain: the launches that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import split_chain


@kernel(
    "rotary_embedding", "split_torch", version=1, role="split", language="torch", note="float32 rotation in torch operations, one rounding"
)
def split_torch(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor | None,
    positions: torch.Tensor | None,
    *,
    layout: str = "interleaved",
    head_dim: int = 0,
    position_offset: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Returns new q, and k where there is one."""
    return split_chain(q, k, cos_cache, sin_cache, positions, layout, head_dim, position_offset)
