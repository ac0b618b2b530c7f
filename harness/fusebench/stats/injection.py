"""Planted comparisons: what each was meant to show, what it truly holds, and the summary that follows.

What is planted is work (more rows) or a delay; what a trial must be counted under is the slowdown of *time* that this amounts to.  So every
planting is measured by itself, in fresh processes with a fixed number of replicates (a number that the trials' own stopping rule does not
touch), and trials are counted under that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from ..schema import Estimate, VerdictKind
from .calibration import DURATION_CLASSES_US, Trial, call_class
from .describe import describe_change

TRUTH_FACTOR = 2.0
"""A truth is known if its interval tells it from half and from twice as much: planted slowdowns lie about that far apart, and a trial must
count under one of them.  What the trials themselves found has no say in it."""


class Injection(StrEnum):
    """How an arm was made slower."""

    IDENTICAL = "identical"
    """Not at all: the same kernel on other buffers."""
    ROWS = "rows"
    """The same kernel with more rows."""
    DELAY = "delay"
    """The same kernel followed by a longer wait on the device, in the same stream."""


class Place(msgspec.Struct, frozen=True):
    """One planting: all trials of it share their truth."""

    session: int
    """Number of the calibration that made it, from 0: each sets its plantings anew."""
    case: str
    kernel: str
    planting: Injection
    nominal: float
    """The slowdown that was meant, as a share of the time; 0 for identical arms."""


class PlantedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison through the whole pipeline."""

    place: Place
    time_us: float
    """Of the old arm."""
    first: VerdictKind
    """Before confirmation."""
    verdict: VerdictKind
    """After confirmation and the correction for the number of comparisons."""
    change: Estimate
    replicates: int
    launches: int = 1
    """Device activities (kernels, copies, fills) per call of the old arm; 0 where the timer cannot see them.  Records that do not say
    count as one launch."""
    device_seconds: float = 0.0
    """Its share of the time that its measurement took."""


class GroundTruth(msgspec.Struct, frozen=True, kw_only=True):
    """What a planting amounts to in time."""

    place: Place
    time_us: float
    change: Estimate
    """New time over old, with an interval over all replicates of all processes."""
    replicates: int


def as_trials(
    trials: Iterable[PlantedTrial], truths: Iterable[GroundTruth], limits_us: Sequence[float] = DURATION_CLASSES_US
) -> list[Trial]:
    """The trials under what was truly planted: the mean truth of all plantings of one class of calls that lie nearest to one nominal size.

    A planting whose truth was not measured, or not well enough (`TRUTH_FACTOR`), counts for nothing (see `uncounted`).
    """
    kept = list(trials)
    known = {truth.place: truth.change.value - 1 for truth in truths if _known(truth)}
    nominals = sorted({trial.place.nominal for trial in kept} - {0.0})
    sizes: dict[tuple[bool, int, float], dict[Place, float]] = defaultdict(dict)
    groups: dict[Place, tuple[bool, int, float]] = {}
    for trial in kept:
        truth = known.get(trial.place, 0.0)
        if trial.place.nominal > 0 and truth > 0:
            nearest = min(nominals, key=lambda nominal: abs(math.log(truth / nominal)))
            # By the planting's first trial: one that lies on the limit between two classes stays one planting.
            groups.setdefault(trial.place, (*call_class(trial.time_us, trial.launches, limits_us), nearest))
            sizes[groups[trial.place]][trial.place] = truth
    mean = {group: math.fsum(found.values()) / len(found) for group, found in sizes.items()}
    return [
        Trial(
            time_us=trial.time_us,
            planted=mean[groups[trial.place]] if trial.place.nominal > 0 else 0.0,
            kind=trial.verdict,
            launches=trial.launches,
            replicates=trial.replicates,
            gpu_seconds=trial.device_seconds,
        )
        for trial in kept
        if trial.place.nominal == 0 or trial.place in groups
    ]


def uncounted(trials: Iterable[PlantedTrial], truths: Iterable[GroundTruth]) -> list[str]:
    """Plantings of which it is not known by how much they slow down, in words."""
    measured = {truth.place: truth for truth in truths}
    found = []
    for place in dict.fromkeys(trial.place for trial in trials if trial.place.nominal > 0):
        truth = measured.get(place)
        if truth is None or not _known(truth):
            seen = "its truth was not measured"
            if truth is not None:
                seen = f"measured {describe_change(truth.change, 2)}, which is not told from half or twice as much"
            found.append(f"{place.kernel} on {place.case}, {place.planting} for {place.nominal:.1%}: {seen}")
    return found


def _known(truth: GroundTruth) -> bool:
    low, slowdown, high = truth.change.low - 1, truth.change.value - 1, truth.change.high - 1
    return slowdown > 0 and low > slowdown / TRUTH_FACTOR and high < slowdown * TRUTH_FACTOR
