"""The eager chain: the launches and rounding points that models have today."""

from __future__ import annotations

import torch

from fusebench import kernel

from ._chain import split_chain


@kernel("qknorm_rope", "split_torch", version=1, role="split", language="torch", note="F.rms_norm, then float32 rotation; two roundings")
def split_torch(
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns new q and k.  `round_norm` makes no difference: this chain always rounds after the norm."""
    return split_chain(q, k, q_weight, k_weight, cos_sin_cache, positions, eps, layout, position_offset)
