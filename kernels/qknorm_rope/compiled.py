"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from ._chain import split_chain

_compiled_chain = CompiledChain(split_chain)


@kernel("qknorm_rope", "compiled", version=1, role="compiled", language="torch", note="torch.compile of split_torch")
def compiled(
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
    """Returns new q and k."""
    return _compiled_chain(q, k, q_weight, k_weight, cos_sin_cache, positions, eps, layout, position_offset)
