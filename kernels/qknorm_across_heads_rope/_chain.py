"""Wan's chain in torch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..qknorm_rope._chain import Rotation
from .op import Arguments


def normed_and_rotated(call: Arguments, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
    """New q and k: the norm rounded to their dtype, then the rotation in float32, rounded again."""
    return _half(call, call.q, call.q_weight, rotation), _half(call, call.k, call.k_weight, rotation)


def _half(call: Arguments, x: torch.Tensor, weight: torch.Tensor | None, rotation: Rotation) -> torch.Tensor:
    tokens = call.cos_sin_cache.shape[0]
    # One sample's tokens to a row of the table each; samples lie one after another.
    cos, sin = call.cos_sin_cache.float().unsqueeze(1).chunk(2, dim=-1)
    rows = x.flatten(1)
    normed = F.rms_norm(rows, rows.shape[-1:], weight, call.eps).view(x.shape)
    return rotation(normed.unflatten(0, (-1, tokens)), cos, sin, "interleaved").flatten(0, 1) if tokens else normed
