"""The simplest right fusion: one program and one warp per (token, head)."""

from __future__ import annotations

import torch

from fusebench import kernel

from . import _triton
from ._arguments import check


@kernel("qknorm_rope", "fused_triton", version=1, role="fused", language="triton", replay=True, note="one program per (token, head)")
def fused_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    eps: float = 1e-6,
    layout: str = "interleaved",
    position_offset: int = 0,
    round_norm: bool = False,
) -> None:
    """Overwrites q and k."""
    check(q, k, q_weight, k_weight, cos_sin_cache, positions, layout=layout, position_offset=position_offset)
    _triton.launch(
        q, k, q_weight, k_weight, cos_sin_cache, positions,
        eps=eps, layout=layout, position_offset=position_offset, round_norm=round_norm, norm=True, rope=True,
        block_heads=1, num_warps=1,
    )  # fmt: skip
