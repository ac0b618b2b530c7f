"""The rotation in torch operations, shared by `split_torch` (eager) and `compiled` (torch.compile of the same code)."""

from __future__ import annotations

import torch

from ..qknorm_rope._chain import rotate


def split_chain(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor | None,
    positions: torch.Tensor | None,
    layout: str,
    head_dim: int,
    position_offset: int,
) -> tuple[torch.Tensor, ...]:
    """New q and, where there is one, k: rotated in float32 and rounded once.  Shapes as in op.py."""
    samples, tokens = (q.shape[0], q.shape[1]) if q.dim() == 4 else (1, q.shape[0])
    caches = (cos_cache,) if sin_cache is None else (cos_cache, sin_cache)
    if positions is None:
        rows = [cache[position_offset : position_offset + tokens] for cache in caches]
    else:
        index = positions + position_offset if position_offset else positions
        rows = [cache.index_select(0, index) for cache in caches]
        if q.dim() == 4:
            rows = [row.unflatten(0, (samples, tokens)) for row in rows]
    cos, sin = rows[0].chunk(2, dim=-1) if sin_cache is None else rows
    cos, sin = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    return tuple(_rotate(x, cos, sin, layout, head_dim) for x in (q, k) if x is not None)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str, head_dim: int) -> torch.Tensor:
    if x.dim() == 2:
        return rotate(x.unflatten(-1, (-1, head_dim)), cos, sin, layout).flatten(1)
    return rotate(x, cos, sin, layout)
