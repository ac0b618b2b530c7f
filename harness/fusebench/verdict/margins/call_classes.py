"""Classes of calls: by duration, and calls of one launch apart from calls of several.

Noise differs between the classes, so the noise floor, the drift of the streaming yardstick and calibrations are kept per class.  Between
the launches of one call the device idles for a time that scatters: on an H200 calls of two launches scattered several times as much as
calls of one launch that took as long.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from ...schema import Measurement

DURATION_CLASSES_US = (3.0, 10.0, 50.0)
"""Limits between classes of kernel duration: below 3 us latency rules and a clock tick is over 1 %; to 10 us scatter is about twice that
of longer kernels; from 50 us the memory system is busy throughout."""


def durations(low_us: float, high_us: float) -> str:
    """`under 3 us`, `3 to 10 us`, `50 us and more`."""
    if low_us == 0:
        return f"under {high_us:g} us"
    return f"{low_us:g} us and more" if math.isinf(high_us) else f"{low_us:g} to {high_us:g} us"


def duration_class(time_us: float, limits_us: Sequence[float] = DURATION_CLASSES_US) -> int:
    """The number of the class of durations that a kernel of `time_us` microseconds belongs to, from 0.  Limits ascend."""
    return bisect.bisect_right(limits_us, time_us)


def makes_several(launches: int) -> bool:
    """Whether a call makes several launches.  0, from a timer that sees none, counts with one: such a timer tells no calls apart."""
    return launches > 1


def launches_of(new: Measurement, old: Measurement) -> int:
    """Launches of one call, for the margin: the fewer of both runs, so that a kernel of one launch in either run gets the narrow margin."""
    return min(new.kernels, old.kernels)


def call_class(time_us: float, launches: int, limits_us: Sequence[float] = DURATION_CLASSES_US) -> tuple[bool, int]:
    """Whether a call makes several launches, and the number of its class of durations.  Classes sort as reports show them."""
    return makes_several(launches), duration_class(time_us, limits_us)


def class_words(low_us: float, high_us: float, several: bool) -> str:
    """`3 to 10 us` for calls of one launch, `3 to 10 us, several launches` for others."""
    return durations(low_us, high_us) + (", several launches" if several else "")
