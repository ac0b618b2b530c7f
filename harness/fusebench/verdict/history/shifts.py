"""The change points of a whole history.  Among hundreds of series some always seem to move, so FDR control selects the changed ones.

A series is called changed when its own p-value is significant by Benjamini and Hochberg's rule among all examined series. The reported set
must itself satisfy the rule: with R changed of m, each has p <= R x rate / m, where R counts only series with a change beyond the margin.
Further change points of a changed series are tested at that same level (Benjamini & Bogomolov, J. R. Statist. Soc. B 76 (2014) 297).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schema import ExitCode, VerdictKind
from ...stats.changepoint import SMALLEST_PART, ChangePoint, Cut, Significance, divide, least_p_value, levels, median
from ...stats.fdr import DEFAULT_RATE, select
from ...stats.random_orders import RandomOrders
from ..exit_status import exit_code_of
from .series import Figure, Series

DEFAULT_MARGIN = 0.01
"""Levels closer than 1 % are one.  The medians of five nights or more each lie within about 0.3 % of their level at 12 us and 0.5 % at
2.8 us on an H200.  Nights also differ by effects that placements do not average out (temperature, driver state); the margin leaves as much
room again for these."""

FLOOR_US = 0.032
"""The margin is never less than one tick of CUPTI's clock on the same GPU."""

_LATER_ORDERS = 20
"""Further divisions are tried with this many orders for each that the level lets score as high: it is known to a quarter then, and no
correction asks for smaller p-values."""


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """A series that moved from one level to another."""

    place: int
    """Number of the first run of the new level, among the history's runs."""
    place_before: int
    """Number of the last run of the level before.  It need not be the previous run: not every run holds every series."""
    p_value: float
    adjusted_p: float
    """Adjusted p-value: the false-discovery rate, over all examined series, at which the change would be significant."""
    before: float
    """Median of the series' figure on the level that ends here, which begins at the shift before or with the series."""
    after: float
    runs_before: int
    runs_after: int
    time_change: float
    """Change of the kernel's own time between the two levels, new over old."""
    yardstick_change: float | None
    """Change of the yardstick's time between the two levels, new over old; None for raw times."""
    yardstick_moved: bool
    """Whether the yardstick's time moved beyond the margin and the kernel's own time did not: the kernel is then not the cause."""
    cause: str | None = None
    """The `causes.Cause`; None where it was not looked for."""
    cause_reason: str = ""

    @property
    def change(self) -> float:
        """New figure over old: above 1 is slower."""
        return self.after / self.before

    @property
    def slower(self) -> bool:
        return self.change > 1.0


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """A series and its shifts."""

    series: Series
    shifts: tuple[Shift, ...]
    too_short: bool
    """Whether the series has too few runs to be divided."""

    @property
    def newest_slower(self) -> bool:
        """Whether the newest level is slower than the one before, and the kernel, not the yardstick, is the cause.

        Where causes are known, a slowdown by the code or by the toolchain.
        """
        newest = self.shifts[-1] if self.shifts else None
        return newest is not None and newest.slower and not newest.yardstick_moved and newest.cause in (None, "regression", "toolchain")


def find_shifts(
    series: Sequence[Series], *, margin: float = DEFAULT_MARGIN, rate: float = DEFAULT_RATE, test: Significance | None = None
) -> list[Track]:
    """Find the shifts of every one of `series`, in their order.

    Args:
        series: series of one history. Series too short to be divided are not examined, and do not count among the m.
        margin: share by which levels must differ; at least `FLOOR_US`.
        rate: expected share of false ones among the series called changed.
        test: significance test of a division; by default random orders, as many as the number of series needs.

    Raises:
        ValueError: a margin that is not positive, or a rate outside (0, 1).
    """
    if not margin > 0:
        raise ValueError(f"margin={margin!r}: expected a positive share")
    looked_at = [one for one in series if len(one.values) >= 2 * SMALLEST_PART]
    cuts, most = _divided(looked_at, rate, test or RandomOrders(orders=orders_needed(len(looked_at), rate)))
    margins = [max(margin, FLOOR_US / statistics.median(one.times_us)) for one in looked_at]
    points, level = _significant(looked_at, cuts, margins, rate, most)
    firsts = [found[0].p_value if kept else 1.0 for found, kept in zip(cuts, points, strict=True)]  # nothing is claimed of the others
    adjusted = select(firsts, rate).adjusted
    shifts = {
        id(one): shifts_of(one, kept, limit, [adjusted_of(point, found, first, rate / level) for point in kept])
        for one, kept, limit, found, first in zip(looked_at, points, margins, cuts, adjusted, strict=True)
    }
    return [Track(series=one, shifts=shifts.get(id(one), ()), too_short=id(one) not in shifts) for one in series]


def orders_needed(count: int, rate: float = DEFAULT_RATE) -> int:
    """Random orders that make one changed series among `count` significant even if one order scores as high: 2 / (1 + orders) <= rate /
    count.

    Ten times as many if affordable (2 s for a hundred runs), so that the p-values at the limit are precise.
    """
    least = math.ceil(2 * max(1, count) / rate)
    return max(least, min(10 * least, 19_999))


def blind(tracks: Sequence[Track], rate: float = DEFAULT_RATE) -> bool:
    """Whether no single series could have been called changed, because all are too short, or too many for their length."""
    lengths = [len(track.series.values) for track in tracks if not track.too_short]
    return not lengths or least_p_value(max(lengths)) > rate / len(lengths)


def runs_needed(count: int, rate: float = DEFAULT_RATE) -> int:
    """The fewest runs that a history of `count` series must have before one of them can be called changed by itself."""
    runs = 2 * SMALLEST_PART
    while least_p_value(runs) > rate / max(1, count):
        runs += 1
    return runs


def history_exit_code(tracks: Sequence[Track], rate: float = DEFAULT_RATE) -> ExitCode:
    """The exit code of `history --gate`: 1 if the newest level of a gating series is slower, 4 if no change could have been seen."""
    slower = [VerdictKind.REGRESSION for track in tracks if track.series.gating and track.newest_slower]
    unseen = [VerdictKind.UNDECIDED] if blind(tracks, rate) else []
    return exit_code_of([*slower, *unseen])


def _divided(series: Sequence[Series], rate: float, test: Significance) -> tuple[list[list[Cut]], int]:
    """The divisions of every series that could be significant under any correction, and the largest possible number of changed series:
    those with significant p-values, whatever the size of their changes."""
    distinct = list(dict.fromkeys(one.values for one in series))  # cases of equal work are measured once, and recorded in each suite
    first = {values: divide(values, test, level=1.0, most=1) for values in distinct}
    own = [first[one.values][0].p_value for one in series]
    most = select(own, rate).count
    level = _level(most, len(series), rate)
    later = test.at_most(math.ceil(_LATER_ORDERS / level)) if isinstance(test, RandomOrders) else test
    cuts = {}
    for values, (cut,) in first.items():
        found = divide(values, later, level=level) if cut.p_value <= level else []
        cuts[values] = [Cut(found[0].index, cut.p_value), *found[1:]] if found else [cut]
    return [cuts[one.values] for one in series], most


def _level(changed: int, count: int, rate: float) -> float:
    return rate * max(1, changed) / max(1, count)


def _significant(
    series: Sequence[Series], cuts: Sequence[list[Cut]], margins: Sequence[float], rate: float, changed: int
) -> tuple[list[list[ChangePoint]], float]:
    """The significant change points by series, and their test level.

    From `changed` series downwards: the largest number R at whose level R series have a change beyond the margin.
    """
    while True:
        level = _level(changed, len(series), rate)
        points = [levels(one.values, until(found, level), limit) for one, found, limit in zip(series, cuts, margins, strict=True)]
        still = sum(bool(found) for found in points)
        if still >= changed:
            return points, level
        changed = still


def until(cuts: Sequence[Cut], level: float) -> list[Cut]:
    """The divisions before the first that fails the level."""
    return list(cuts[: next((place for place, cut in enumerate(cuts) if cut.p_value > level), len(cuts))])


def adjusted_of(point: ChangePoint, cuts: Sequence[Cut], first: float, factor: float) -> float:
    """The series' own adjusted p-value for its first division; for later ones the largest on the way there, times what the level allows."""
    place = next(place for place, cut in enumerate(cuts) if cut.index == point.index)
    return min(1.0, max([first, *(cut.p_value * factor for cut in cuts[1 : place + 1])]))


def shifts_of(series: Series, points: Sequence[ChangePoint], margin: float, adjusted: Sequence[float]) -> tuple[Shift, ...]:
    """The shifts at `points`, which are in order of time; `adjusted` are their adjusted p-values."""
    edges = [0, *(point.index for point in points), len(series.values)]
    times = _medians(np.asarray(series.times_us), edges)
    yardsticks = _medians(series.yardsticks_us(), edges) if series.figure is not Figure.RAW else None
    within = math.log1p(margin)
    found = []
    for here, point in enumerate(points):
        time_change = times[here + 1] / times[here]
        yardstick_change = yardsticks[here + 1] / yardsticks[here] if yardsticks is not None else None
        shift = Shift(
            place=series.places[point.index],
            place_before=series.places[point.index - 1],
            p_value=point.p_value,
            adjusted_p=adjusted[here],
            before=point.before,
            after=point.after,
            runs_before=point.index - edges[here],
            runs_after=edges[here + 2] - point.index,
            time_change=time_change,
            yardstick_change=yardstick_change,
            yardstick_moved=yardstick_change is not None and abs(math.log(time_change)) <= within < abs(math.log(yardstick_change)),
        )
        found.append(shift)
    return tuple(found)


def _medians(values: NDArray[np.float64], edges: Sequence[int]) -> list[float]:
    """The median between any two neighbouring edges."""
    return [median(values[start:end]) for start, end in itertools.pairwise(edges)]
