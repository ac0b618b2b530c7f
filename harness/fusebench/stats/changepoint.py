"""Change points in a history of runs: where a kernel's time (or any figure) moved and stayed.

E-divisive on ranks: the split that maximises the energy distance between what lies before and after it, tested by a significance test that
is passed in, then each part again until no split is significant.  The right end of the later part is free as well, so that a bump which
returns is found.

Source: Matteson & James, J. Amer. Statist. Assoc. 109 (2014) 334.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from .energy import best_split, rank_scores
from .random_orders import RandomOrders
from .signed_rank import Floats

SMALLEST_PART = 5
"""Runs on either side of a change point: with fewer, one outlier is a change."""

_PLACINGS = 3
"""A cut that moves changes both medians and its neighbours' levels; after three rounds hardly any moves again."""


class Cut(msgspec.Struct, frozen=True):
    """A place where a series was divided, before it is asked whether the levels differ enough to matter."""

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
    """Any test of the best split of the parts found so far."""

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
    """The change points of `series`, in order of time: `divide`, then `levels`, which document the arguments and what is raised."""
    return levels(series, divide(series, significance, level=level, smallest_part=smallest_part), smallest_change)


def divide(
    series: Sequence[float],
    significance: Significance | None = None,
    *,
    level: float = 0.01,
    smallest_part: int = SMALLEST_PART,
    most: int | None = None,
) -> list[Cut]:
    """Where `series` is divided, the plainest division first.  Each p-value is that of "nothing changes within the parts made so far", so
    the first one is the series' own, and a stricter level keeps the divisions before the first that fails it.

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
    return _placed(np.log(values), found, smallest_part)


def levels(series: Sequence[float], cuts: Sequence[Cut], smallest_change: float = 0.0) -> list[ChangePoint]:
    """The change points at `cuts`, in order of time.

    A change of the median by no more than the share `smallest_change` is left out, the smallest first, and its two levels become one;
    those beyond it are kept.  A change of nothing is none.
    """
    p_values = {cut.index: cut.p_value for cut in cuts}
    edges = [0, *sorted(p_values), len(series)]
    while True:
        found = [
            ChangePoint(
                index=here, p_value=p_values[here], before=statistics.median(series[past:here]), after=statistics.median(series[here:then])
            )
            for past, here, then in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        least = min(found, key=lambda point: abs(math.log(point.change)), default=None)
        if least is None or abs(math.log(least.change)) > math.log1p(smallest_change):
            return found
        edges.remove(least.index)


def _placed(logs: Floats, cuts: Sequence[Cut], smallest_part: int) -> list[Cut]:
    """`cuts` in their order, each moved to where its two levels explain the values best, by the sum of distances to their medians.

    The plainest division of ranks is often a run or two away from there, and the place is what a commit is looked for by.
    """
    placed = list(cuts)
    for _ in range(_PLACINGS):
        for here, cut in enumerate(placed):
            low = max((one.index for one in placed if one.index < cut.index), default=0)
            high = min((one.index for one in placed if one.index > cut.index), default=len(logs))
            before, after = logs[low : cut.index], logs[cut.index : high]
            part = logs[low:high]
            to_before, to_after = np.abs(part - np.median(before)), np.abs(part - np.median(after))
            cost = np.concatenate(([0.0], np.cumsum(to_before - to_after)))  # of cutting before each place, up to a constant
            allowed = slice(smallest_part, len(part) - smallest_part + 1)
            placed[here] = Cut(low + smallest_part + int(np.argmin(cost[allowed])), cut.p_value)
    return placed


def least_p_value(count: int, smallest_part: int = SMALLEST_PART) -> float:
    """A bound from below on the p-value of any single change in `count` values; 1 where they are too few to be divided.

    Every order of the ranks that keeps two levels apart is as good a division as the one seen: with levels of equal length there are two
    such orders of levels in the `count` choose half; of unequal length, four.
    """
    if count < 2 * smallest_part:
        return 1.0
    return (4 if count % 2 else 2) / math.comb(count, count // 2)
