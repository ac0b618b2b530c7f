"""The tuned fusion: a program per block of heads of one token, which share its cosines and sines."""

from __future__ import annotations

import torch

from fusebench import Bitwise, Close, kernel
from fusebench.schema import Contract

from . import _tiles, _triton
from ._arguments import check
from .op import Params


@kernel(
    "qknorm_rope",
    "fused_triton",
    version=2,
    role="fused",
    language="triton",
    replay=True,
    note="blocks of heads share cos and sin; tuned tile",
)
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
    tile = _tiles.fused(q)
    _triton.launch(
        q, k, q_weight, k_weight, cos_sin_cache, positions,
        eps=eps, layout=layout, position_offset=position_offset, round_norm=round_norm, norm=True, rope=True,
        block_heads=tile.block_heads, num_warps=tile.num_warps,
    )  # fmt: skip


@fused_triton.promises
def _(params: Params) -> Contract:
    """With the norm rounded, both launches of the split chain are reproduced bit for bit, where rows are summed in the same order.

    Partly rotated neox heads are read as three tiles, the halves so narrow that the two launches spread them over lanes differently.
    Rows must start on 16 bytes, as those of every case do: narrower loads let the tile decide how a row lies on lanes and warps.
    """
    same_order = params.layout == "interleaved" or params.rotary == params.head_dim
    return Bitwise("qknorm_rope/split_triton@1") if params.mode == "round_norm" and same_order else Close()
