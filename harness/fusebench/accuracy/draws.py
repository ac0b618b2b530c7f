"""The inputs of a check: magnitudes, number of draws, and planted special values."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum

import torch

MAGNITUDES = (1.0, 1e-3, 1e3)
"""Scales of the inputs.  Each is judged by itself, because absolute errors grow with them.  At 1e-3 the epsilon of a norm matters; at 1e3 a
sum of squares overflows in 16 bits."""

MOST_DRAWS = 256
"""Most draws per magnitude, for outputs too small to fill `BIAS_ELEMENTS`; 16 elements reach it."""

_SMALL = 1 << 20
"""Elements of all inputs below which special values get draws of their own.  Above, a draw costs seconds on a CPU, and a few planted rows
leave the rest of the tensor plain."""


_SHARED_ROWS = 64
"""Rows of every activation from which all kinds of special values share a draw; an eighth of the rows becomes special then."""

_MOST_ROWS = 16
"""Most rows planted per kind; more would only cost time."""


class Special(StrEnum):
    """A kind of row planted into inputs."""

    ZEROS = "zeros"
    NAN = "nan"
    INF = "inf"
    NEGATIVE_INF = "-inf"


def is_small(buffers: Mapping[str, torch.Tensor]) -> bool:
    """Whether a draw of these inputs costs almost nothing."""
    return sum(buffer.numel() for buffer in buffers.values()) < _SMALL


def special_draws(buffers: Mapping[str, torch.Tensor]) -> list[tuple[Special, ...]]:
    """The sets of special values to plant, one draw each.

    With `_SHARED_ROWS` rows or more per activation all kinds share a draw, some rows each.  In smaller inputs each kind gets its own draw,
    because one NaN would leave little else to compare.
    """
    rows = [buffer.numel() // buffer.shape[-1] for buffer in _activations(buffers).values()]
    if rows and min(rows) >= _SHARED_ROWS:
        return [tuple(Special)]
    return [(kind,) for kind in Special]


def plant(buffers: Mapping[str, torch.Tensor], kinds: tuple[Special, ...], rng: random.Random) -> None:
    """Overwrite random rows of every activation per kind: a whole row with zeros, or a sixteenth of it with NaN or Inf.

    Every kind gets several rows, if the input has several, because a row of a packed buffer may lie outside every argument's view.
    """
    for buffer in _activations(buffers).values() if kinds else ():
        width = buffer.shape[-1]
        rows = buffer.view(-1, width)
        each = min(max(1, rows.shape[0] // (32 if len(kinds) > 1 else 4)), _MOST_ROWS)
        chosen = rng.sample(range(rows.shape[0]), each * len(kinds))
        for number, row in enumerate(chosen):
            kind = kinds[number % len(kinds)]
            if kind is Special.ZEROS:
                rows[row] = 0.0
            else:
                # A row may hold many heads: a sixteenth of its elements reaches them all.
                columns = rng.sample(range(width), max(1, width // 16))
                rows[row, torch.tensor(columns, device=buffer.device)] = float(kind)


def keep_in_range(buffers: Mapping[str, torch.Tensor]) -> None:
    """Bring Inf back to the dtype's greatest value.

    Outliers at magnitude 1e3 overflow float16 and would turn every row to NaN, with nothing left to compare.  Inf is planted on purpose
    instead.
    """
    for buffer in buffers.values():
        if buffer.dtype == torch.float16:
            buffer.clamp_(-torch.finfo(torch.float16).max, torch.finfo(torch.float16).max)


def _activations(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The floating buffers of at least a quarter of the largest one's size.

    Weights and tables that are small beside the activations are left out: one NaN in a weight is NaN in every row.
    """
    floating = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point() and buffer.dim() and buffer.numel()}
    largest = max((buffer.numel() for buffer in floating.values()), default=0)
    return {name: buffer for name, buffer in floating.items() if 4 * buffer.numel() >= largest}
