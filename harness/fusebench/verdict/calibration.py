"""Summary of a machine's calibration: the false-alarm rate of its verdicts, and the smallest slowdown that they find.

It counts comparisons with a known answer: A/A comparisons, and comparisons with an injected slowdown. For each class of calls it gives the
rate at which A/A comparisons were called slower, with an upper bound, and the rate at which each injected slowdown was found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from ..schema import GroundTruth, InjectedTrial, InjectionPlace, VerdictKind
from ..stats.paired import describe_change
from ..stats.rates import Rate, rate, visible_effect
from .call_classes import DURATION_CLASSES_US, call_class, class_words, makes_several

FOUND_SHARE = 0.95
"""Share of injected slowdowns that must be found for their size to count as visible."""

FEWEST_TRIALS = 20
"""Trials of a size that a claim, or an objection to one, needs.  19 of 20 is the first share that is 95 %: fewer cannot show it."""

TRUTH_FACTOR = 2.0
"""A ground truth is known if its interval excludes half and twice its value: injected slowdowns lie about that far apart, and a trial must
count under one of them.  The trials' own findings are not used."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison with a known answer."""

    time_us: float
    injected: float
    """Slowdown as a share of the time, in time and not in work: 0 for A/A comparisons.  A kernel that does 2 % more work at 3 us is some
    1 % slower."""
    kind: VerdictKind
    launches: int = 1
    """Device activities per call; 0 if the timer saw none."""
    replicates: int = 0
    gpu_seconds: float = 0.0


class ClassSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One class of durations, of calls that make one launch or of calls that make several."""

    low_us: float
    high_us: float
    several_launches: bool
    false_regressions: Rate
    """A/A comparisons called slower."""
    false_improvements: Rate
    """A/A comparisons called faster."""
    undecided: Rate
    """A/A comparisons without a verdict."""
    found: dict[float, Rate]
    """By injected slowdown, ascending: the rate at which it was called a regression, for any number of trials."""
    passed: dict[float, Rate]
    """By injected slowdown: how often it passed."""
    smallest_found: float | None
    """The smallest injected slowdown that, like every larger one, was found in at least 95 % of its trials, or None. Only sizes with at
    least `FEWEST_TRIALS` trials count, here and below."""
    largest_tried: float | None
    """The largest injected slowdown; a missing `smallest_found` is larger. None if no slowdown was injected often enough."""
    visible: float | None
    """Slowdown at which the found share crosses 95 %, interpolated between injected slowdowns; None if it does not."""
    median_replicates: float
    """Replicates that A/A comparisons took; NaN without any."""
    slowest_gpu_seconds: float
    """The most GPU time that an A/A comparison took, in seconds; NaN without any."""

    @property
    def name(self) -> str:
        """The class in words."""
        return class_words(self.low_us, self.high_us, self.several_launches)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a machine."""

    classes: tuple[ClassSummary, ...]
    """Classes with any trial: calls of one launch before calls of several, each with the shortest durations first."""
    false_regressions: Rate
    """Over all classes; every report states its upper end."""

    def of(self, time_us: float, launches: int = 1) -> ClassSummary | None:
        """The class of calls of `time_us` microseconds and `launches` launches; None if it was not calibrated."""
        several = makes_several(launches)
        return next((one for one in self.classes if one.several_launches == several and one.low_us <= time_us < one.high_us), None)


def summarise(trials: Iterable[Trial], limits_us: Sequence[float] = DURATION_CLASSES_US) -> Calibration:
    """Count the trials, by class of calls.

    Raises:
        ValueError: a negative or unbounded injected slowdown, a time that is not positive, or a negative number of launches.
    """
    edges = [0.0, *limits_us, math.inf]
    grouped: dict[tuple[bool, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        if not (0 < trial.time_us < math.inf and 0 <= trial.injected < math.inf and trial.launches >= 0):
            raise ValueError(f"{trial!r}: expected a positive time, and an injected slowdown and launches that are not negative")
        grouped[call_class(trial.time_us, trial.launches, limits_us)].append(trial)
    classes = tuple(_class(edges[place], edges[place + 1], several, grouped[several, place]) for several, place in sorted(grouped))
    equal = [trial for group in grouped.values() for trial in group if trial.injected == 0]
    return Calibration(classes=classes, false_regressions=_rate(equal, VerdictKind.REGRESSION))


def _class(low: float, high: float, several: bool, trials: Sequence[Trial]) -> ClassSummary:
    equal = [trial for trial in trials if trial.injected == 0]
    injected = {
        size: [trial for trial in trials if trial.injected == size] for size in sorted({trial.injected for trial in trials} - {0.0})
    }
    found = {size: _rate(group, VerdictKind.REGRESSION) for size, group in injected.items()}
    called_slower = _rate(equal, VerdictKind.REGRESSION)
    curve = {size: one for size, one in {0.0: called_slower, **found}.items() if one.total >= FEWEST_TRIALS}
    tried = {size: one for size, one in curve.items() if size > 0}
    return ClassSummary(
        low_us=low,
        high_us=high,
        several_launches=several,
        false_regressions=called_slower,
        false_improvements=_rate(equal, VerdictKind.IMPROVEMENT),
        undecided=_rate(equal, VerdictKind.UNDECIDED),
        found=found,
        passed={size: _rate(group, VerdictKind.PASS) for size, group in injected.items()},
        smallest_found=_smallest(tried),
        largest_tried=max(tried, default=None),
        visible=visible_effect(curve, FOUND_SHARE),
        median_replicates=float(median(trial.replicates for trial in equal)) if equal else math.nan,
        slowest_gpu_seconds=max((trial.gpu_seconds for trial in equal), default=math.nan),
    )


def _smallest(found: dict[float, Rate]) -> float | None:
    smallest = None
    for size in sorted(found, reverse=True):
        if found[size].value < FOUND_SHARE:
            break
        smallest = size
    return smallest


def _rate(trials: Sequence[Trial], kind: VerdictKind) -> Rate:
    return rate(sum(trial.kind is kind for trial in trials), len(trials))


def as_trials(
    trials: Iterable[InjectedTrial], ground_truths: Iterable[GroundTruth], limits_us: Sequence[float] = DURATION_CLASSES_US
) -> list[Trial]:
    """The trials, each under the slowdown that was truly injected.

    Injections of one class of calls whose ground truths lie nearest to the same nominal size form a group, and their trials count under the
    group's mean ground truth.  An injection without a known ground truth (`TRUTH_FACTOR`) does not count; `uncounted` names it.
    """
    kept = list(trials)
    known = {truth.place: truth.change.value - 1 for truth in ground_truths if _known(truth)}
    nominals = sorted({trial.place.nominal for trial in kept} - {0.0})
    sizes: dict[tuple[bool, int, float], dict[InjectionPlace, float]] = defaultdict(dict)
    groups: dict[InjectionPlace, tuple[bool, int, float]] = {}
    for trial in kept:
        truth = known.get(trial.place, 0.0)
        if trial.place.nominal > 0 and truth > 0:
            nearest = min(nominals, key=lambda nominal: abs(math.log(truth / nominal)))
            # By the injection's first trial: one on the limit between two classes stays one injection.
            groups.setdefault(trial.place, (*call_class(trial.time_us, trial.launches, limits_us), nearest))
            sizes[groups[trial.place]][trial.place] = truth
    mean = {group: math.fsum(found.values()) / len(found) for group, found in sizes.items()}
    return [
        Trial(
            time_us=trial.time_us,
            injected=mean[groups[trial.place]] if trial.place.nominal > 0 else 0.0,
            kind=trial.verdict,
            launches=trial.launches,
            replicates=trial.replicates,
            gpu_seconds=trial.device_seconds,
        )
        for trial in kept
        if trial.place.nominal == 0 or trial.place in groups
    ]


def uncounted(trials: Iterable[InjectedTrial], ground_truths: Iterable[GroundTruth]) -> list[str]:
    """One sentence for each injection whose ground truth is not known."""
    measured = {truth.place: truth for truth in ground_truths}
    found = []
    for place in dict.fromkeys(trial.place for trial in trials if trial.place.nominal > 0):
        truth = measured.get(place)
        if truth is None or not _known(truth):
            seen = "its ground truth was not measured"
            if truth is not None:
                seen = f"measured {describe_change(truth.change, 2)}, which is not told from half or twice as much"
            found.append(f"{place.kernel} on {place.case}, {place.injection} for {place.nominal:.1%}: {seen}")
    return found


def _known(truth: GroundTruth) -> bool:
    low, slowdown, high = truth.change.low - 1, truth.change.value - 1, truth.change.high - 1
    return slowdown > 0 and low > slowdown / TRUTH_FACTOR and high < slowdown * TRUTH_FACTOR
