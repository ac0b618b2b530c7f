"""Components of the scatter between runs, the interval of a change between two runs, and the margin that the scatter allows.

The log of a time is the sum of a kernel's own, a board's, a process's and a placement's part.  Each run knows the scatter of its
placements.  The parts of processes and boards come from pairs of stored runs of equal code.

Processes have modes, and a few kernels differ more between boards than the others, so tails are heavy.  The distribution is Student's t,
and a component is the scale at which its 95 % interval holds 95 % of the pairs: no outlier moves it far, and the coverage is right where
intervals are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..schema import Estimate
from .student import quantile

DEGREES = 5
"""Degrees of freedom of the scatter.  Over seven classes of calls of one model, maximum likelihood gives 2.4 to 10; with 5, intervals of
90, 95, 99 and 99.9 % hold 89.4, 94.8, 98.9 and 99.9 % of pairs whose boards took no part in the estimate."""
LEVEL = 0.95
_LARGEST = 0.5
"""Components are searched up to a factor of exp(0.5)."""
_HALVINGS = 50


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The log ratio of two runs' times of equal code."""

    log_ratio: float
    own: float
    """Variance that the two runs know themselves: of their placements."""
    processes: float
    """Sum of 1 / processes over the two runs."""
    same_board: bool


def standard_error(estimate: Estimate, units: int) -> float:
    """Standard error of the log behind a Student interval over `units`; infinite without an interval.

    Raises:
        ValueError: fewer than one unit.
    """
    if units < 1:
        raise ValueError(f"units={units!r}: an interval is over at least one unit")
    if units == 1 or estimate.low <= 0 or math.isinf(estimate.high):
        return math.inf
    return math.log(estimate.high / estimate.low) / 2 / quantile(0.5 + estimate.level / 2, units - 1)


def components(differences: Sequence[Difference]) -> tuple[float | None, float | None]:
    """The scales between processes and between boards.

    None for boards without a pair of two boards.  None for processes without a pair of one board: then the scale of boards is that of a
    process and a board together.

    Raises:
        ValueError: no difference.
    """
    same = [one for one in differences if one.same_board]
    other = [one for one in differences if not one.same_board]
    if not differences:
        raise ValueError("no differences: the scatter between runs needs at least one pair of runs")
    process = _scale([(abs(one.log_ratio), one.own, one.processes) for one in same]) if same else None
    known = process or 0.0
    return process, _scale([(abs(one.log_ratio), one.own + known**2 * one.processes, 2.0) for one in other]) if other else None


def interval(log_ratio: float, variance: float, level: float = LEVEL) -> Estimate:
    """The change with this log and squared scale."""
    half = quantile(0.5 + level / 2, DEGREES) * math.sqrt(variance)
    ends = [math.exp(log_ratio - half), math.exp(min(log_ratio + half, 700.0))] if math.isfinite(half) else [0.0, math.inf]
    return Estimate(math.exp(log_ratio), ends[0], ends[1], level)


def at_level(change: Estimate, level: float) -> Estimate:
    """The `interval` around the same change at another level."""
    if change.low <= 0 or math.isinf(change.high):
        return msgspec.structs.replace(change, level=level)
    factor = quantile(0.5 + level / 2, DEGREES) / quantile(0.5 + change.level / 2, DEGREES)
    half = factor * math.log(change.high / change.low) / 2
    return Estimate(change.value, change.value * math.exp(-half), change.value * math.exp(half), level)


def excess(pairs: Sequence[Estimate]) -> float:
    """The factor, at least 1, by which intervals must widen so that a share `LEVEL` of them holds no change.

    1 for fewer than 20 pairs, whose largest is beyond a 95 % interval by chance.
    """
    if len(pairs) < 1 / (1 - LEVEL):
        return 1.0
    ratios = sorted(abs(math.log(one.value)) / math.log(one.value / one.low) if 0 < one.low < one.value else 0.0 for one in pairs)
    return max(1.0, ratios[math.ceil(LEVEL * len(ratios)) - 1])


def passing_margin(scale: float, power: float, level: float) -> float:
    """The smallest margin (of the log) inside which the `level` interval of equal code lies with probability `power`."""
    return scale * (quantile(0.5 + power / 2, DEGREES) + quantile(0.5 + level / 2, DEGREES))


def finding_margin(slowdown: float, scale: float, power: float, level: float) -> float:
    """The largest margin (of the log) beyond which the `level` interval of a slowdown (of the log) lies with probability `power`."""
    return slowdown - scale * (quantile(power, DEGREES) + quantile(0.5 + level / 2, DEGREES))


def _scale(differences: Sequence[tuple[float, float, float]]) -> float:
    """The smallest scale at which `LEVEL` of the differences lie inside their intervals.

    Args:
        differences: the distance from no change, the variance that is known, and how often the squared scale is added to it.
    """
    reach = quantile(0.5 + LEVEL / 2, DEGREES)

    def covers(scale: float) -> bool:
        square, root = scale**2, math.sqrt
        inside = sum([distance <= reach * root(known + square * times) for distance, known, times in differences])
        return inside >= LEVEL * len(differences)

    low, high = 0.0, _LARGEST
    if covers(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high
