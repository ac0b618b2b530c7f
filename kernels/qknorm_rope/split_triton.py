"""The honest split yardstick: one well-tuned QK-norm launch, then one well-tuned RoPE launch, each in place."""

from __future__ import annotations

import torch

from fusebench import kernel

from . import _tiles, _triton
from ._arguments import check


@kernel("qknorm_rope", "split_triton", version=1, role="split", language="triton", note="QK norm, then RoPE: two launches, in place")
def split_triton(
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
    """Overwrites q and k.  The norm's result is rounded to their dtype between the launches, whatever `round_norm` says."""
    check(q, k, q_weight, k_weight, cos_sin_cache, positions, layout=layout, position_offset=position_offset)
    tile = _tiles.split(q)
    for norm, rope in ((True, False), (False, True)):
        _triton.launch(
            q, k, q_weight, k_weight, cos_sin_cache, positions,
            eps=eps, layout=layout, position_offset=position_offset, round_norm=round_norm, norm=norm, rope=rope,
            block_heads=tile.block_heads, num_warps=tile.num_warps,
        )  # fmt: skip
