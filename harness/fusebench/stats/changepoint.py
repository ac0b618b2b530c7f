"""Change points in a history of runs: where a kernel's time (or any figure) moved and stayed.

E-divisive on ranks: find the split that maximises the energy distance between the values before and after it, test it for significance, and
repeat with each part until no split is significant. The right end of the later part is free as well, so that a temporary bump is found.

Source: Matteson & James, J. Amer. Statist. Assoc. 109 (2014) 334.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from .energy import best_split, rank_scores
from .random_orders import RandomOrders
from .signed_rank import Floats

SMALLEST_PART = 5
"""Least number of runs before and after a change point: with fewer, one outlier would be a change."""

_PLACINGS = 3
"""Rounds of moving the cuts. A moved cut changes both medians and its neighbours' levels; after three rounds hardly any cut moves."""


class Cut(msgspec.Struct, frozen=True):
    """A place where a series was divided, before the test whether the levels differ enough."""

    index: int
    """The first value of the new level."""
    p_value: float


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
    """A significance test of the best split of the parts found so far."""

    def __call__(self, parts: Sequence[Floats], statistic: float, smallest: int) -> float:
        """P-value of "no part changes within", where the best split of all `parts`, which are rank scores, scored `statistic`."""
        ...


def change_points(
    series: Sequence[float],
    significance: Significance | None = None,
    *,
    level: float = 0.01,
    smallest_part: int = SMALLEST_PART,
    smallest_change: float = 0.0,
) -> list[ChangePoint]:
    """The change points of `series`, in order of time: `divide`, then `levels`, which document the arguments and errors."""
    return levels(series, divide(series, significance, level=level, smallest_part=smallest_part), smallest_change)


def divide(
    series: Sequence[float],
    significance: Significance | None = None,
    *,
    level: float = 0.01,
    smallest_part: int = SMALLEST_PART,
    most: int | None = None,
) -> list[Cut]:
    """The divisions of `series`, the most significant first. Each p-value is that of "nothing changes within the parts made so far". So the
    first one is the whole series' p-value, and a stricter level keeps the divisions before the first that fails it.

    Args:
        series: positive figures in order of time, such as microseconds or ratios to a yardstick.  Their ranks are compared.
        significance: `RandomOrders()` unless given.
        level: a series without change is divided with at most this probability.
        smallest_part: the least number of values on either side.
        most: stop after so many divisions.

    Raises:
        ValueError: a value that is not positive and finite, or `smallest_part` below 2.
    """
    for place, value in enumerate(series):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"value {place} of {len(series)} is {value!r}; expected a positive finite figure")
    if smallest_part < 2:
        raise ValueError(f"smallest_part={smallest_part!r}: a level needs at least two values")
    test = significance if significance is not None else RandomOrders()
    values = np.asarray(series, dtype=np.float64)
    edges, found = [0, len(values)], list[Cut]()
    while most is None or len(found) < most:
        parts = [rank_scores(values[start:end]) for start, end in pairwise(edges)]
        splits = [best_split(part, smallest_part) for part in parts]
        chosen = max(range(len(parts)), key=lambda place: splits[place][0])
        statistic, where = splits[chosen]
        if where == 0:
            break  # no part is long enough to split
        p_value = test(parts, statistic, smallest_part)
        if p_value > level:
            break
        edges.insert(chosen + 1, edges[chosen] + where)
        found.append(Cut(edges[chosen + 1], p_value))
    return placed(np.log(values), found, smallest_part)


def levels(series: Sequence[float], cuts: Sequence[Cut], smallest_change: float = 0.0) -> list[ChangePoint]:
    """The change points at `cuts`, in order of time.

    A change of the median by at most the share `smallest_change` is dropped, the smallest first, and its two levels become one. Equal
    medians are no change.
    """
    p_values = {cut.index: cut.p_value for cut in cuts}
    values = np.asarray(series)
    level = functools.cache(lambda start, end: median(values[start:end]))
    edges = [0, *sorted(p_values), len(series)]
    while True:
        found = [
            ChangePoint(index=here, p_value=p_values[here], before=level(past, here), after=level(here, then))
            for past, here, then in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        least = min(found, key=lambda point: abs(math.log(point.change)), default=None)
        if least is None or abs(math.log(least.change)) > math.log1p(smallest_change):
            return found
        edges.remove(least.index)


def placed(logs: Floats, cuts: Sequence[Cut], smallest_part: int) -> list[Cut]:
    """`cuts` in their order, each moved to the place where its two levels explain the values best: least sum of distances to their medians.

    The most significant division of ranks is often a run or two away from there, and the place names the suspected commit.
    """
    placed = list(cuts)
    for _ in range(_PLACINGS):
        before_moves = list(placed)
        for here, cut in enumerate(placed):
            low = max((one.index for one in placed if one.index < cut.index), default=0)
            high = min((one.index for one in placed if one.index > cut.index), default=len(logs))
            before, after = logs[low : cut.index], logs[cut.index : high]
            part = logs[low:high]
            to_before, to_after = np.abs(part - median(before)), np.abs(part - median(after))
            cost = np.concatenate(([0.0], np.cumsum(to_before - to_after)))  # of cutting before each place, up to a constant
            allowed = slice(smallest_part, len(part) - smallest_part + 1)
            placed[here] = Cut(low + smallest_part + int(np.argmin(cost[allowed])), cut.p_value)
        if placed == before_moves:
            break
    return placed


def median(values: Floats) -> float:
    """As `np.median`, whose checks take three times as long as the median of a level."""
    middle = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, middle)[middle])
    ordered = np.partition(values, (middle - 1, middle))
    return float((ordered[middle - 1] + ordered[middle]) / 2)


def least_p_value(count: int, smallest_part: int = SMALLEST_PART) -> float:
    """A lower bound on the p-value of any single change in `count` values; 1 if they are too few to be divided.

    Every order of the ranks that keeps two levels apart is as good a division as the observed one. Among the `count` choose half orders
    there are two of these for levels of equal length, four for unequal lengths.
    """
    if count < 2 * smallest_part:
        return 1.0
    return (4 if count % 2 else 2) / math.comb(count, count // 2)
