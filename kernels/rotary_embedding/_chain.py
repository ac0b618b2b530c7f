"""The rotation of a call in torch operations."""

from __future__ import annotations

import torch

from ..qknorm_rope._chain import Rotation
from .op import Arguments


def rotated_by(call: Arguments, rotation: Rotation) -> tuple[torch.Tensor, ...]:
    """New q, and k where there is one: rotated in float32 and rounded once."""
    samples, tokens = (call.q.shape[0], call.q.shape[1]) if call.q.dim() == 4 else (1, call.q.shape[0])
    caches = (call.cos_cache,) if call.sin_cache is None else (call.cos_cache, call.sin_cache)
    if call.positions is None:
        rows = [cache[call.position_offset : call.position_offset + tokens] for cache in caches]
    else:
        index = call.positions + call.position_offset if call.position_offset else call.positions
        rows = [cache.index_select(0, index) for cache in caches]
        if call.q.dim() == 4:
            rows = [row.unflatten(0, (samples, tokens)) for row in rows]
    cos, sin = rows[0].chunk(2, dim=-1) if call.sin_cache is None else rows
    cos, sin = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    return tuple(_rotate(x, cos, sin, call, rotation) for x in (call.q, call.k) if x is not None)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, call: Arguments, rotation: Rotation) -> torch.Tensor:
    if x.dim() == 2:
        return rotation(x.unflatten(-1, (-1, call.head_dim)), cos, sin, call.layout).flatten(1)
    return rotation(x, cos, sin, call.layout)
