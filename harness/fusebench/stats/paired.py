"""Times and time ratios with intervals over replicates, or over several processes, based on trimmed means.

The trimmed mean turns the samples of one arm in one replicate into one number. A median would quantise to the timer's tick (32 ns with
CUPTI); a plain mean would follow the rare launch that the device interrupted.

In one process the unit is the replicate (a fresh placement of all buffers): samples on one placement share its effect, so their scatter
does not predict the next placement. With several processes the unit is the process, for the same reason: a process affects all its
replicates alike (0.4 % for a copy and for a split chain on an H200). More replicates would narrow the interval until the next process lies
outside it.

Both estimates are Student t intervals on the logarithm of one number per unit; a process's number is the mean over its replicates. Times
and ratios scatter by factors, and swapping the arms of a ratio only changes the sign of its logarithm.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..schema import Estimate, Sample

Replicates = Sequence[Sequence[float]]
"""Samples of one arm, by replicate, then by round."""


class InvalidSamplesError(ValueError):
    """Samples that cannot be times: none at all, or one that is not a positive finite number."""


def trimmed_mean(values: Sequence[float], trim: float) -> float:
    """Mean of `values` without the lowest and the highest `trim` share of them, in the values' own unit.

    From each end floor(trim x count) values are cut, so at least one value stays.

    Args:
        values: durations, any order.
        trim: share cut from each end, 0 <= trim < 0.5.

    Raises:
        InvalidSamplesError: no values, or a value that is NaN, infinite, zero or negative.
        ValueError: `trim` outside its range.
    """
    if not 0.0 <= trim < 0.5:
        raise ValueError(f"trim={trim!r}: expected a share of at least 0 and less than 0.5, cut from each end")
    if len(values) == 0:
        raise InvalidSamplesError("no samples to average: every arm needs at least one timed call in every replicate")
    for index, value in enumerate(values):
        if not (math.isfinite(value) and value > 0):
            raise InvalidSamplesError(f"sample {index} of {len(values)} is {value!r}; expected a positive finite duration")
    cut = math.floor(trim * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return math.fsum(kept) / len(kept)


def spans_by_replicate(samples: Iterable[Sample]) -> dict[str, dict[tuple[int, int], list[float]]]:
    """Spans in nanoseconds, by arm, then by (process, replicate) in ascending order.

    The key needs both numbers, because every process counts its own replicates.
    """
    spans: dict[str, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        spans[sample.arm][sample.process, sample.replicate].append(float(sample.span_ns))
    return {arm: dict(sorted(found.items())) for arm, found in spans.items()}


def time_estimate(replicates: Replicates, trim: float, level: float = 0.95, *, processes: Sequence[int] = ()) -> Estimate:
    """Geometric mean of the replicates' trimmed means, in the samples' own unit; with several processes, over the processes' means.

    With one replicate the scatter between placements is unknown, and the samples' own scatter would understate it. The interval is then
    (0, inf).

    Args:
        replicates: samples by replicate, then by round.
        trim: share of samples cut from each end of a replicate.
        level: coverage of the interval.
        processes: for each replicate, the number of the process that measured it; empty for one process.

    Raises:
        InvalidSamplesError: no replicate, an empty one, a sample that is not a positive finite number, or not one process per replicate.
    """
    return _interval([math.log(trimmed_mean(values, trim)) for values in replicates], level, processes)


def ratio_estimate(
    numerator: Replicates, denominator: Replicates, trim: float, level: float = 0.95, *, processes: Sequence[int] = ()
) -> Estimate:
    """Time of `numerator` over time of `denominator`, paired by replicate: both arms ran in the same rounds.

    Common effects of a replicate on both arms (clocks, temperature) cancel in its log ratio before replicates are compared. Other arguments
    are those of `time_estimate`.

    Raises:
        InvalidSamplesError: as `time_estimate`, or the two arms have different numbers of replicates.
    """
    if len(numerator) != len(denominator):
        raise InvalidSamplesError(
            f"the arms of a ratio must share their replicates; found {len(numerator)} above and {len(denominator)} below"
        )
    logs = [
        math.log(trimmed_mean(above, trim)) - math.log(trimmed_mean(below, trim))
        for above, below in zip(numerator, denominator, strict=True)
    ]
    return _interval(logs, level, processes)


def half_width(ratio: Estimate) -> float:
    """Half of a ratio's interval as a share of the ratio: 1.98 to 2.02 is 1 %; infinite if the interval reaches 0 or infinity."""
    return math.log(ratio.high / ratio.low) / 2 if ratio.low > 0 and ratio.high < math.inf else math.inf


def describe_change(change: Estimate, digits: int = 1) -> str:
    """`+2.1 % [+1.0 %, +3.2 %]` with `digits` decimals; an interval without bounds is named as such."""
    point = f"{100 * (change.value - 1):+.{digits}f} %"
    if change.low <= 0.0 or change.high == float("inf"):
        return f"{point} [no interval: one replicate]"
    return f"{point} [{100 * (change.low - 1):+.{digits}f} %, {100 * (change.high - 1):+.{digits}f} %]"


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """`above / below` for estimates of independent positive quantities: distances to the interval's ends, taken on the
    logarithm, add in quadrature (Goodman's rule for the ratio of independent log-normal estimates; an unbounded end stays so).

    Raises:
        ValueError: a value that is not positive and finite.
    """
    for estimate in (above, below):
        if not (math.isfinite(estimate.value) and estimate.value > 0):
            raise ValueError(f"a quotient needs positive finite estimates, not {estimate.value!r}")
    value = above.value / below.value
    down = math.hypot(_log_distance(above.value, above.low), _log_distance(below.value, below.high))
    up = math.hypot(_log_distance(above.value, above.high), _log_distance(below.value, below.low))
    return Estimate(value, value * math.exp(-down), value * _exp(up), min(above.level, below.level))


def _interval(logs: Sequence[float], level: float, processes: Sequence[int]) -> Estimate:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r}: expected a coverage between 0 and 1")
    if not logs:
        raise InvalidSamplesError("no replicates: nothing was measured")
    units = _units(logs, processes)
    count = len(units)
    mean = math.fsum(units) / count
    if count == 1:
        return Estimate(math.exp(mean), 0.0, math.inf, level)
    variance = math.fsum((value - mean) ** 2 for value in units) / (count - 1)
    half = _t_quantile(count - 1, level) * math.sqrt(variance / count)
    return Estimate(math.exp(mean), math.exp(mean - half), _exp(mean + half), level)


def _units(logs: Sequence[float], processes: Sequence[int]) -> Sequence[float]:
    """The mean of each process, all with equal weight; for one process, its replicates."""
    if processes and len(processes) != len(logs):
        raise InvalidSamplesError(f"every replicate has its process; found {len(processes)} processes for {len(logs)} replicates")
    by_process: dict[int, list[float]] = defaultdict(list)
    for process, value in zip(processes, logs, strict=False):
        by_process[process].append(value)
    return [math.fsum(values) / len(values) for values in by_process.values()] if len(by_process) > 1 else logs


@functools.cache
def _t_quantile(degrees: int, level: float) -> float:
    # Imported here: scipy.special takes a third of a second, which `gate` and `compare` do not have.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2))


def _log_distance(value: float, end: float) -> float:
    return abs(math.log(end / value)) if 0.0 < end < math.inf else math.inf


def _exp(exponent: float) -> float:
    try:
        return math.exp(exponent)
    except OverflowError:
        return math.inf
