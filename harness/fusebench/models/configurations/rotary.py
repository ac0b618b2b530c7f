"""Rotary tables as the ops take them, made once per forward."""

from __future__ import annotations

from typing import NamedTuple

import torch


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
    cache = torch.cat([frequencies.real, frequencies.imag], dim=-1).float()
    return RotaryTable(cache, torch.arange(cache.shape[0], device=cache.device))
