"""Energy distances between the two parts of every split of a series, on ranks.

The energy distance sees any change of distribution and needs no normality. On ranks, an extreme run moves it no further than a slightly bad
one. In a series without change its distribution depends only on the length, because every order of the ranks is equally likely.

Sources: Matteson & James, J. Amer. Statist. Assoc. 109 (2014) 334, equations 5 to 7, with exponent 1; Deb & Sen, J. Amer. Statist. Assoc.
118 (2023) 192, for the energy distance of ranks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .signed_rank import Floats

_TIE_SEED = 20140101
"""Seed of the fixed order in which equal values are ranked."""


def rank_scores(values: Sequence[float] | Floats) -> Floats:
    """Ranks of `values` over their number, from 0 to below 1.

    Equal values get a random order, fixed by their number, so every order of the ranks stays equally likely without a change.
    """
    array = np.asarray(values, dtype=np.float64)
    scores = np.empty(len(array))
    scores[np.lexsort((_tie_order(len(array)), array))] = np.arange(len(array)) / max(1, len(array))
    return scores


def energy_distances(values: Sequence[float] | Floats, smallest: int) -> npt.NDArray[np.float64]:
    """The scaled energy distance of every split: row t, column k compares values[:t] with values[t:k]; -inf if a part has fewer than
    `smallest` values. Float64, shape [n + 1, n + 1] for n values."""
    array = np.asarray(values, dtype=np.float64)
    weights = _weights(len(array), smallest)
    sums = np.zeros((len(array) + 1, len(array) + 1))
    np.cumsum(np.abs(array[:, None] - array[None, :]), axis=0, out=sums[1:, 1:])
    np.cumsum(sums[1:, 1:], axis=1, out=sums[1:, 1:])  # of the first t values with the first k
    block = np.diagonal(sums).copy()  # of the first n values with one another, each pair twice
    sums *= weights.sums
    sums -= weights.row_block * block[:, None]
    sums -= weights.column_block * block[None, :]
    sums += weights.forbidden
    return sums


def best_split(values: Floats, smallest: int) -> tuple[float, int]:
    """The highest energy distance of any split and its place; (-inf, 0) if the series is too short for a split."""
    if len(values) < 2 * smallest:
        return -math.inf, 0
    energies = energy_distances(values, smallest)
    best = int(np.argmax(energies))
    return float(energies.flat[best]), best // energies.shape[1]


class _Weights:
    """Weights of the sums in every split's distance: l r / (l + r) x (2 cross / l r - left / l (l - 1) - right / r (r - 1)), with
    cross = sums - row block and right = column block - 2 sums + row block."""

    def __init__(self, count: int, smallest: int) -> None:
        until = np.arange(count + 1, dtype=np.float64)
        left = until[:, None]
        right = until[None, :] - left
        allowed = (left >= smallest) & (right >= smallest)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = left * right / (left + right)
            cross, own_left, own_right = 2 * scale / (left * right), scale / (left * (left - 1)), scale / (right * (right - 1))
            self.sums = np.where(allowed, cross + 2 * own_right, 0.0)
            self.row_block = np.where(allowed, cross + own_left + own_right, 0.0)
            self.column_block = np.where(allowed, own_right, 0.0)
        self.forbidden = np.where(allowed, 0.0, -np.inf)


@functools.lru_cache(maxsize=256)
def _weights(count: int, smallest: int) -> _Weights:
    return _Weights(count, smallest)


@functools.cache
def _tie_order(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(_TIE_SEED).permutation(count)
