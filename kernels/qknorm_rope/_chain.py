"""The rotation in torch operations, in the ways in which models write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .op import Arguments

Rotation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], torch.Tensor]
"""Rotates x by cos and sin in a layout: `rotate`, and the same thing said otherwise."""


def normed_and_rotated(call: Arguments, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
    """New q and k: the norm rounded to their dtype, then the rotation in float32, rounded again."""
    q, k, positions = call.q, call.k, call.positions
    rows = positions + call.position_offset if call.position_offset else positions
    cos, sin = call.cos_sin_cache.index_select(0, rows).float().unsqueeze(1).chunk(2, dim=-1)
    normed = (F.rms_norm(q, q.shape[-1:], call.q_weight, call.eps), F.rms_norm(k, k.shape[-1:], call.k_weight, call.eps))
    return rotation(normed[0], cos, sin, call.layout), rotation(normed[1], cos, sin, call.layout)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str) -> torch.Tensor:
    """Rotate the first `2 * cos.shape[-1]` dimensions of x in float32 and round to x's dtype; cos and sin are `[N, 1, R/2]`."""
    rotary = 2 * cos.shape[-1]
    turning, rest = x[..., :rotary].float(), x[..., rotary:]
    a, b = turning.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else turning.chunk(2, dim=-1)
    first, second = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack((first, second), dim=-1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), dim=-1)
    turned = turned.to(x.dtype)
    return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)


def rotate_whole(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str) -> torch.Tensor:
    """As `rotate`, written x * cos + turned(x) * sin, as diffusers' `apply_rotary_emb` and transformers' `rotate_half` do.

    Eagerly it reads more. torch.compile makes a better kernel of it: per element one plain load of x and two under a mask, where `rotate`
    has four of x and four of cos and sin, all under masks (torch 2.13, from Inductor's code for an H200).
    """
    rotary = 2 * cos.shape[-1]
    turning, rest = x[..., :rotary], x[..., rotary:]
    if layout == "interleaved":
        a, b = turning.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((-b, a), dim=-1).flatten(-2)
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    else:
        a, b = turning.chunk(2, dim=-1)
        turned = torch.cat((-b, a), dim=-1)
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    rotated = (turning.float() * cos + turned.float() * sin).to(x.dtype)
    return rotated if rest.shape[-1] == 0 else torch.cat((rotated, rest), dim=-1)


def rotate_complex(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str) -> torch.Tensor:
    """As `rotate`, by complex numbers, as Qwen-Image and Wan do. Up to torch 2.13 Inductor generates no code for them."""
    rotary = 2 * cos.shape[-1]
    turning, rest = x[..., :rotary].float(), x[..., rotary:]
    pairs = turning.unflatten(-1, (-1, 2)) if layout == "interleaved" else turning.unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin))
    turned = (turned if layout == "interleaved" else turned.transpose(-1, -2)).flatten(-2).to(x.dtype)
    return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)


class Phrasing(NamedTuple):
    """A way to write the rotation for torch.compile."""

    rotation: Rotation
    in_place: bool = False
    """Whether q and k are overwritten in the graph."""
    options: Mapping[str, Any] = {}
    """Inductor's."""

    def __str__(self) -> str:
        return ", ".join((self.rotation.__name__, *("in place" for _ in range(self.in_place)), *self.options))

    def hand_over(self, q: torch.Tensor, k: torch.Tensor | None, turned: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        """The new tensors, or None after they have overwritten q and k."""
        if not self.in_place:
            return turned
        for x, new in zip((q, k), turned, strict=False):
            if x is not None:
                x.copy_(new)
        return None


WHOLE = Phrasing(rotate_whole)
MAX_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True}
"""What `mode="max-autotune"` sets for kernels without a matrix product, without its CUDA graphs."""
OTHERS = {
    "complex": Phrasing(rotate_complex),
    "in_place": Phrasing(rotate_whole, in_place=True),
    "max_autotune": Phrasing(rotate_whole, options=MAX_AUTOTUNE),
    "pairs_max_autotune": Phrasing(rotate, options=MAX_AUTOTUNE),
}
"""Choices of `compiled_whole`, measured only when they are named: `--kernel 'compiled*,compiled_whole__*'`. Up to torch 2.13 at least,
Inductor fails `in_place` on views of a packed projection."""
