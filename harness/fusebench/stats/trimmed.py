"""The trimmed mean: one number for the samples that one replicate holds of one arm.

A median would quantise to the timer's tick (32 ns with CUPTI); a plain mean would follow the rare launch that the device
interrupted.  The mean of what lies between the cut tails does neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import TimerError


class InvalidSamplesError(TimerError, ValueError):
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
