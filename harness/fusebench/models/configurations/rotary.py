"""Rotary tables as the ops take them, made once per forward, and the one call of `qknorm_rope` that all models share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..op_calls import SiteOp


class RotaryTable(NamedTuple):
    """`cache [T, R]` float32, cosines in the first R/2 columns and sines in the last, and `positions [T]` that count its rows."""

    cache: torch.Tensor
    positions: torch.Tensor


def from_real_pairs(cos: torch.Tensor, sin: torch.Tensor) -> RotaryTable:
    """From diffusers' `cos` and `sin` `[T, R]`, which hold every value twice: for both elements of an interleaved pair."""
    cache = torch.cat([cos[:, ::2], sin[:, ::2]], dim=-1).float()
    return RotaryTable(cache, torch.arange(cache.shape[0], device=cache.device))


def from_complex(frequencies: torch.Tensor) -> RotaryTable:
    """From complex unit numbers `[T, R/2]`."""
    cache = cosines_and_sines(frequencies)
    return RotaryTable(cache, torch.arange(cache.shape[0], device=cache.device))


def cosines_and_sines(frequencies: torch.Tensor) -> torch.Tensor:
    """`[..., R]` float32 from complex unit numbers `[..., R/2]`: their real parts, then their imaginary parts."""
    return torch.cat([frequencies.real, frequencies.imag], dim=-1).float()


def rotate(op: SiteOp, query: torch.Tensor, key: torch.Tensor, q_norm: Any, k_norm: Any, table: RotaryTable, *, offset: int = 0) -> None:
    """Normalise and rotate q and k `[B, T, H, D]` in place, all samples by the same rows of the table, from row `offset` on.

    The result of the norm is rounded before the rotation reads it, as by a norm that is a module of its own.  diffusers' `RMSNorm` rounds
    once more, before it multiplies with its weight.  No mode of the op does that: its bits differ there, and its error is smaller.
    """
    batch, tokens = query.shape[:2]
    positions = table.positions[:tokens] if batch == 1 else table.positions[:tokens].repeat(batch)
    op(
        query.flatten(0, 1),
        key.flatten(0, 1),
        q_norm.weight,
        k_norm.weight,
        table.cache,
        positions,
        eps=q_norm.eps,
        layout="interleaved",
        position_offset=offset,
        round_norm=True,
    )
