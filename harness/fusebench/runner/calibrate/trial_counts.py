"""How many pairs of each planted slowdown a visit holds: enough for every class of calls to be claimed when all passes are over."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from ...stats.calibration import call_class
from .pilots import Pilot


def injected_counts(pilots: Mapping[int, Pilot], passes: int, fewest: int, trials: int) -> dict[int, dict[float, int]]:
    """By subject and slowdown, pairs in each pass: `fewest`, or as many as give the slowdown `trials` in the subject's class of calls.

    Subjects of one class share the trials that it needs.  The two classes of calls of two launches on an H200 hold one subject each: with
    three pairs in each of two passes nothing could ever be claimed of them.
    """
    planting: dict[tuple[bool, int, float], list[int]] = defaultdict(list)
    for place, pilot in pilots.items():
        for slowdown in pilot.values:
            planting[(*call_class(pilot.time_us, pilot.launches), slowdown)].append(place)
    counts: dict[int, dict[float, int]] = {place: {} for place in pilots}
    for (_, _, slowdown), places in planting.items():
        for place in places:
            counts[place][slowdown] = max(fewest, math.ceil(trials / (passes * len(places))))
    return counts
