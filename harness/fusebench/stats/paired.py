"""Times and time ratios with intervals over replicates.

The replicate (a fresh placement of all buffers) is the unit: samples on one placement share its luck, so their own scatter
says nothing of the next placement's.  Both estimates are Student t intervals on the logarithm of one number per replicate;
times and ratios scatter by factors, and the logarithm of a ratio is symmetric in which arm is on top.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ..schema import Estimate
from .trimmed import InvalidSamplesError, trimmed_mean

Replicates = Sequence[Sequence[float]]
"""Samples of one arm, grouped by replicate."""


def time_estimate(replicates: Replicates, trim: float, level: float = 0.95) -> Estimate:
    """Geometric mean over replicates of their trimmed means, in the samples' own unit.

    With one replicate the placement-to-placement scatter is unknown, and the samples' own scatter would understate it: the
    interval is then all that honesty allows, (0, inf).

    Raises:
        InvalidSamplesError: no replicate, an empty one, or a sample that is not a positive finite number.
    """
    return _interval([math.log(trimmed_mean(values, trim)) for values in replicates], level)


def ratio_estimate(numerator: Replicates, denominator: Replicates, trim: float, level: float = 0.95) -> Estimate:
    """Time of `numerator` over time of `denominator`, paired by replicate: both arms ran in the same rounds.

    What a replicate does to both arms (clocks, temperature) cancels in its log ratio before replicates are compared.

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
    return _interval(logs, level)


def half_width(ratio: Estimate) -> float:
    """Half of a ratio's interval as a share of the ratio: 1.98 to 2.02 is 1 %; infinite where the interval reaches 0 or infinity."""
    return math.log(ratio.high / ratio.low) / 2 if ratio.low > 0 and ratio.high < math.inf else math.inf


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


def _interval(logs: Sequence[float], level: float) -> Estimate:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r}: expected a coverage between 0 and 1")
    count = len(logs)
    if count == 0:
        raise InvalidSamplesError("no replicates: nothing was measured")
    mean = math.fsum(logs) / count
    if count == 1:
        return Estimate(math.exp(mean), 0.0, math.inf, level)
    variance = math.fsum((value - mean) ** 2 for value in logs) / (count - 1)
    half = _t_quantile(count - 1, level) * math.sqrt(variance / count)
    return Estimate(math.exp(mean), math.exp(mean - half), _exp(mean + half), level)


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
