"""The rotation in torch operations, as models write it."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str) -> torch.Tensor:
    """Rotate the first `2 * cos.shape[-1]` dimensions of x in float32 and round to x's dtype; cos and sin are `[N, 1, R/2]`."""
    rotary = 2 * cos.shape[-1]
    turning, rest = x[..., :rotary].float(), x[..., rotary:]
    a, b = turning.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else turning.chunk(2, dim=-1)
    first, second = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack((first, second), dim=-1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), dim=-1)
    turned = turned.to(x.dtype)
    return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)
