"""Wilcoxon's signed-rank test and its confidence interval, exact for every symmetric distribution.

The log ratio of two arms on one random placement is symmetric about the log of their true ratio: swapping the labels of an A/A
pair only changes its sign, and a slowdown shifts it. So the test needs independent signs, but neither a normal distribution nor a finite
variance, and replicates may differ in scatter. Everything here follows from the Walsh averages
(x_i + x_j) / 2, i <= j: the number of them above a limit is Wilcoxon's statistic at that limit.

Source: Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, 3rd ed., sections 3.1 to 3.3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def walsh_averages(values: Sequence[float] | Floats) -> Floats:
    """The n (n + 1) / 2 averages of all pairs of `values`, each with itself included, ascending, in the values' own unit.

    Raises:
        ValueError: no value, or one that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"Walsh averages need at least one value, all finite; found {list(values)!r}")
    first, second = _pairs(array.size)
    averages = (array[first] + array[second]) * 0.5
    averages.sort()
    return averages


def center(walsh: Floats) -> float:
    """Hodges and Lehmann's estimate: the median of the Walsh averages. Nearly as precise as the mean for normal values, and robust against
    outliers."""
    return float(np.median(walsh))


def p_above(walsh: Floats, count: int, limit: float) -> float:
    """One-sided p-value of the hypothesis that the centre of symmetry is at most `limit`, from the Walsh averages of `count` values.

    An average equal to the limit counts against the finding, so ties only make the test more cautious.
    """
    return _at_most(count)[int(np.searchsorted(walsh, limit, side="right"))]


def p_below(walsh: Floats, count: int, limit: float) -> float:
    """One-sided p-value of the hypothesis that the centre of symmetry is at least `limit`."""
    return _at_most(count)[walsh.size - int(np.searchsorted(walsh, limit, side="left"))]


def bounds(walsh: Floats, count: int, tail: float) -> tuple[float, float]:
    """The interval that misses the centre of symmetry at each end with probability at most `tail`; unbounded if `count` values are too few
    (2**-count > tail).

    It inverts the test: its lower end is above a limit exactly when `p_above` is at most `tail`.
    """
    cut = _rank_cut(count, tail)
    return (-math.inf, math.inf) if cut == 0 else (float(walsh[cut - 1]), float(walsh[walsh.size - cut]))


@functools.cache
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(count)


@functools.cache
def _at_most(count: int) -> tuple[float, ...]:
    """P(T <= t) for t = 0 .. count (count + 1) / 2, where T sums each rank 1 .. count with probability a half."""
    mass = np.zeros(count * (count + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, count + 1):
        shifted = np.zeros_like(mass)
        shifted[rank:] = mass[:-rank]
        mass = 0.5 * (mass + shifted)
    return tuple(np.minimum(np.cumsum(mass), 1.0).tolist())


@functools.cache
def _rank_cut(count: int, tail: float) -> int:
    """The largest k with P(T <= k - 1) <= tail, or 0."""
    return int(np.searchsorted(np.asarray(_at_most(count)), tail, side="right"))
