"""torch.compile of the split chain: what a user gets for free."""

from __future__ import annotations

import torch

from fusebench import kernel

from .._shared.compiled_chain import CompiledChain
from ._chain import split_chain

_compiled_chain = CompiledChain(split_chain)


@kernel("rotary_embedding", "compiled", version=1, role="compiled", language="torch", note="torch.compile of split_torch")
def compiled(
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
    return _compiled_chain(q, k, cos_cache, sin_cache, positions, layout, head_dim, position_offset)
