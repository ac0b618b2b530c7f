"""The split chain in torch operations, shared by `split_torch` (eager) and `compiled` (torch.compile of the same code)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def split_chain(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
    layout: str,
    position_offset: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm of q and k `[N, heads, D]`, each rounded to their dtype, then the rotation in float32, rounded again."""
    rows = positions + position_offset if position_offset else positions
    cos, sin = cos_sin_cache.index_select(0, rows).float().unsqueeze(1).chunk(2, dim=-1)
    normed = (F.rms_norm(q, q.shape[-1:], q_weight, eps), F.rms_norm(k, k.shape[-1:], k_weight, eps))
    return rotate(normed[0], cos, sin, layout), rotate(normed[1], cos, sin, layout)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str) -> torch.Tensor:
    """Rotate the first `2 * cos.shape[-1]` dimensions of x in float32 and round to x's dtype; cos and sin are `[N, 1, R/2]`."""
    rotary = 2 * cos.shape[-1]
    turning, rest = x[..., :rotary].float(), x[..., rotary:]
    a, b = turning.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else turning.chunk(2, dim=-1)
    first, second = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack((first, second), dim=-1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), dim=-1)
    turned = turned.to(x.dtype)
    return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)
