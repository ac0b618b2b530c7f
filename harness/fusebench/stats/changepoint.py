"""Change points in a history of runs: where a kernel's time (or any figure) moved and stayed.

E-divisive: the split that maximises the energy distance between what lies before and after it, tested by a significance test that is passed
in, then each part again until no split is significant.  The energy distance sees any change of distribution, needs no normality, and
a single wild run moves it little.  The right end of the later part is free as well, so that a bump which returns is found.

Source: Matteson & James, J. Amer. Statist. Assoc. 109 (2014) 334, equations 5 to 7, with exponent 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from .signed_rank import Floats

SMALLEST_PART = 5
"""Runs on either side of a change point: with fewer, one outlier is a change."""

EXPONENT = 1.0
"""Power of the distance, in (0, 2): 1 is Euclidean distance and asks for a finite mean only."""


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the series moved."""

    index: int
    """The first value of the new level."""
    p_value: float
    before: float
    """Median of the part that ends here."""
    after: float
    """Median of the part that begins here."""

    @property
    def change(self) -> float:
        """`after` over `before`."""
        return self.after / self.before


class Significance(Protocol):
    """Any test of the best split of the parts found so far."""

    def __call__(self, parts: Sequence[Floats], statistic: float, smallest: int) -> float:
        """P-value of "no part changes within", where the best split of all `parts` scored `statistic`."""
        ...


class PermutationTest:
    """Shuffles values within each part: where a part does not change, every order of it is equally likely.

    The p-value is (1 + orders that score as high) / (1 + orders tried), which is valid for any number of orders.
    """

    def __init__(self, permutations: int = 199, seed: int = 0) -> None:
        """`permutations` orders are tried: 199 resolve p to 0.005.  The same seed gives the same answer to the same series."""
        if permutations < 1:
            raise ValueError(f"permutations={permutations!r}: expected at least one")
        self.permutations = permutations
        self._seed = seed

    def __call__(self, parts: Sequence[Floats], statistic: float, smallest: int) -> float:
        generator = np.random.default_rng(self._seed)
        distances = [_distances(part) for part in parts]
        as_high = 0
        for _ in range(self.permutations):
            orders = [generator.permutation(len(part)) for part in parts]
            best = max(_best_split(matrix[np.ix_(order, order)], smallest)[0] for matrix, order in zip(distances, orders, strict=True))
            as_high += best >= statistic * (1 - 1e-12)
        return (1 + as_high) / (1 + self.permutations)


def change_points(
    series: Sequence[float],
    significance: Significance | None = None,
    *,
    level: float = 0.01,
    smallest_part: int = SMALLEST_PART,
    smallest_change: float = 0.0,
) -> list[ChangePoint]:
    """The change points of `series`, in order of time.

    Args:
        series: positive figures in order of time, such as microseconds or ratios to a yardstick.  Their logarithms are compared.
        significance: `PermutationTest()` unless given.
        level: a series without change gets a change point with at most this probability.
        smallest_part: the least number of values on either side.
        smallest_change: changes of the median by less than this share are left out; those found beyond them are kept.

    Raises:
        ValueError: a value that is not positive and finite, or `smallest_part` below 2.
    """
    for place, value in enumerate(series):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"value {place} of {len(series)} is {value!r}; expected a positive finite figure")
    if smallest_part < 2:
        raise ValueError(f"smallest_part={smallest_part!r}: a level needs at least two values")
    test = significance if significance is not None else PermutationTest()
    logs = np.log(np.asarray(series, dtype=np.float64))
    cuts, p_values = [0, len(logs)], {}
    while True:
        parts = [logs[start:end] for start, end in pairwise(cuts)]
        splits = [_best_split(_distances(part), smallest_part) for part in parts]
        chosen = max(range(len(parts)), key=lambda place: splits[place][0])
        statistic, where = splits[chosen]
        if where == 0:
            break  # no part is long enough to split
        p_value = test(parts, statistic, smallest_part)
        if p_value > level:
            break
        cuts.insert(chosen + 1, cuts[chosen] + where)
        p_values[cuts[chosen + 1]] = p_value
    return _large_enough(series, cuts, p_values, smallest_change)


def energy_distances(values: Sequence[float] | Floats, smallest: int = SMALLEST_PART) -> npt.NDArray[np.float64]:
    """The scaled energy distance of every split: row t, column k holds that between values[:t] and values[t:k]; -inf where a side has
    fewer than `smallest` values."""
    return _energies(_distances(np.asarray(values, dtype=np.float64)), smallest)


def _large_enough(series: Sequence[float], cuts: list[int], p_values: dict[int, float], smallest_change: float) -> list[ChangePoint]:
    """The change points left when those smaller than asked for are merged away, the smallest first."""
    cuts = list(cuts)
    while True:
        found = [
            ChangePoint(
                index=here, p_value=p_values[here], before=statistics.median(series[past:here]), after=statistics.median(series[here:then])
            )
            for past, here, then in zip(cuts, cuts[1:], cuts[2:], strict=False)
        ]
        least = min(found, key=lambda point: abs(math.log(point.change)), default=None)
        if least is None or abs(math.log(least.change)) >= math.log1p(smallest_change):
            return found
        cuts.remove(least.index)


def _distances(part: Floats) -> Floats:
    apart = np.abs(part[:, None] - part[None, :])
    return apart if EXPONENT == 1.0 else apart**EXPONENT


def _energies(distances: Floats, smallest: int) -> Floats:
    count = len(distances)
    sums = np.zeros((count + 1, count + 1))
    np.cumsum(np.cumsum(distances, axis=0), axis=1, out=sums[1:, 1:])
    until = np.arange(count + 1)
    left = until[:, None].astype(np.float64)
    right = until[None, :] - left
    block = np.diagonal(sums)  # of the first n values with one another, each pair twice
    cross = sums - block[:, None]  # of values[:t] with values[t:k]
    right_block = block[None, :] - 2 * sums + block[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = 2 * cross / (left * right) - block[:, None] / (left * (left - 1)) - right_block / (right * (right - 1))
        scaled = left * right / (left + right) * distance
    return np.where((left >= smallest) & (right >= smallest), scaled, -np.inf)


def _best_split(distances: Floats, smallest: int) -> tuple[float, int]:
    """The highest energy distance of any split and where it is; (-inf, 0) where the part is too short for one."""
    if len(distances) < 2 * smallest:
        return -math.inf, 0
    energies = _energies(distances, smallest)
    best = int(np.argmax(energies))
    return float(energies.flat[best]), best // energies.shape[1]
