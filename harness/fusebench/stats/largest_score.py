"""The p-value of the largest score in a series that is divided at any place.

Sources: James, James & Siegmund, Biometrika 74 (1987) 71 (tail of the largest score); Siegmund, Sequential Analysis, 1985, chapter 10
(discrete time).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from .changepoint import SMALLEST_PART
from .seeded_intervals import seeded

_LENGTHS = 1.1
"""Tails are computed for lengths that grow by this factor."""


def p_values_of(scores: NDArray[np.float64], runs: int, smallest_part: int = SMALLEST_PART) -> NDArray[np.float64]:
    """Upper bound on the probability that the largest score in `runs` runs without a change is at least each of `scores`.

    The variance in a score is known to two thirds of the runs' degrees of freedom, those of a variance from differences; Wallace's
    approximation (Ann. Math. Stat. 30 (1959) 1121) makes a normal score of it.
    """
    degrees = max(1.0, 2 / 3 * (runs - 1))
    normal = np.sqrt(degrees * np.log1p(scores**2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    # Rounded up to one of a few lengths: more runs have a longer tail.
    rounded = max(2 * smallest_part, math.ceil(_LENGTHS ** math.ceil(math.log(max(2, runs), _LENGTHS))))
    found: NDArray[np.float64] = np.where(scores > 0, np.minimum(1.0, np.exp(np.interp(normal, *_tail(rounded, smallest_part)))), 1.0)
    return found


@functools.cache
def _tail(runs: int, smallest_part: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores, and the logarithm of the tail probability at each, summed over the seeded intervals of `runs` runs."""
    grid = np.linspace(1.0, 20.0, 100)
    total = np.zeros_like(grid)
    for starts, length in seeded(runs, 2 * smallest_part):
        place = np.arange(smallest_part, length - smallest_part + 1) / length
        weight = length * place * (1 - place)
        half = (len(weight) + 1) // 2  # a place weighs as much as its mirror image
        times = np.full(half, 2.0)
        times[half - 1] = 2.0 - len(weight) % 2
        weight = weight[:half]
        total += len(starts) * (_nu(grid[:, None] / np.sqrt(weight)) @ (times / weight))
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    return grid, np.log(np.maximum(grid * density * total, 1e-300))


def _nu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Siegmund's correction for discrete time, as the approximation of Siegmund & Yakir (2007), to 1e-7.

    Read from a table, because scipy's normal distribution takes longer to import than a history of one kernel.
    """
    found: NDArray[np.float64] = np.interp(x, *_nu_table())
    return found


@functools.cache
def _nu_table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = np.linspace(1e-3, 20.0, 20_000)
    half = x / 2
    normal = 0.5 + 0.5 * np.array([math.erf(one) for one in (half / math.sqrt(2)).tolist()])
    return x, (2 / x) * (normal - 0.5) / (half * normal + np.exp(-(half**2) / 2) / math.sqrt(2 * math.pi))
