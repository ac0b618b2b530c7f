"""Summary of a machine's calibration: the false-alarm rate of its verdicts, and the smallest slowdown that they find.

It counts comparisons with a known answer: A/A comparisons, and comparisons with an injected slowdown. For each class of calls it gives the
rate at which A/A comparisons were called slower, with an upper bound, and the rate at which each injected slowdown was found.

Trials of one case in one session resemble each other: they share an injection, a compiled kernel and the processes.  They are one cluster,
and all intervals allow for that (`stats.rates`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from statistics import median

import msgspec

from ..schema import GroundTruth, InjectedTrial, InjectionPlace, VerdictKind
from ..stats.paired import describe_change
from ..stats.rates import Cluster, Rate, clustered_rate, intraclass_correlation, rate, visible_effect
from .margins.call_classes import DURATION_CLASSES_US, call_class, class_words, makes_several

FOUND_SHARE = 0.95
"""Share of injected slowdowns that must be found for their size to count as visible."""

CLAIM_LEVEL = 0.90
"""A two-sided interval of 90 % has the lower confidence limit of 95 % that a claim needs."""

FEWEST_TRIALS = 20
"""Trials of a size that an objection to a claim needs.  19 of 20 is the first share that is 95 %: fewer cannot show it."""

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
    cluster: Hashable = None
    """Trials with one cluster resemble each other: a case in a session; None where the trial is independent of all others."""
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
    """The smallest injected slowdown of which at least 95 % are found by the lower confidence limit (95 %), while every larger one with
    at least `FEWEST_TRIALS` trials was found in at least 95 % of them; or None."""
    largest_tried: float | None
    """The largest injected slowdown with enough trials to be claimed, or to be an objection; a missing `smallest_found` is larger. None
    if no slowdown was injected often enough."""
    visible: float | None
    """Slowdown at which the found share crosses 95 %, interpolated between injected slowdowns; None if it does not."""
    least_found: dict[float, float]
    """By injected slowdown, the lower confidence limit (95 %) of the rate at which it is found."""
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
    every = [trial for group in grouped.values() for trial in group]
    alike = Alike(grouped.values())
    classes = tuple(_class(edges[place], edges[place + 1], several, grouped[several, place], alike) for several, place in sorted(grouped))
    equal = [trial for trial in every if trial.injected == 0]
    return Calibration(classes=classes, false_regressions=alike.rate(equal, VerdictKind.REGRESSION))


class Alike:
    """How much trials of one cluster resemble each other, and rates that allow for it.

    Few classes hold enough clusters to tell it by themselves, and a size of which everything was found tells nothing.  So it is pooled over
    all classes and sizes, for A/A comparisons and for injected slowdowns apart.
    """

    def __init__(self, classes: Iterable[Sequence[Trial]]) -> None:
        """`classes`: the trials of each class of calls."""
        strata: dict[bool, list[Sequence[Trial]]] = {True: [], False: []}
        for trials in classes:
            for size in {trial.injected for trial in trials}:
                strata[size > 0].append([trial for trial in trials if trial.injected == size])
        self._correlation = {
            (injected, kind): intraclass_correlation([_clusters(group, kind) for group in groups])
            for injected, groups in strata.items()
            for kind in VerdictKind
        }

    def rate(self, trials: Sequence[Trial], kind: VerdictKind, level: float = 0.95) -> Rate:
        """How many of `trials`, which are all A/A comparisons or all injected slowdowns, were called `kind`."""
        if not trials:
            return rate(0, 0, level)
        return clustered_rate(_clusters(trials, kind), self._correlation[trials[0].injected > 0, kind], level)


def _clusters(trials: Sequence[Trial], kind: VerdictKind) -> list[Cluster]:
    """Trials of that kind and all trials, by cluster."""
    found: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0])
    for number, trial in enumerate(trials):
        one = found[number if trial.cluster is None else (trial.cluster,)]
        one[0] += trial.kind is kind
        one[1] += 1
    return [(count, total) for count, total in found.values()]


def _class(low: float, high: float, several: bool, trials: Sequence[Trial], alike: Alike) -> ClassSummary:
    equal = [trial for trial in trials if trial.injected == 0]
    injected = {
        size: [trial for trial in trials if trial.injected == size] for size in sorted({trial.injected for trial in trials} - {0.0})
    }
    found = {size: alike.rate(group, VerdictKind.REGRESSION) for size, group in injected.items()}
    claims = {size: alike.rate(group, VerdictKind.REGRESSION, CLAIM_LEVEL) for size, group in injected.items()}
    called_slower = alike.rate(equal, VerdictKind.REGRESSION)
    curve = {size: one for size, one in {0.0: called_slower, **found}.items() if one.total >= FEWEST_TRIALS}
    return ClassSummary(
        low_us=low,
        high_us=high,
        several_launches=several,
        false_regressions=called_slower,
        false_improvements=alike.rate(equal, VerdictKind.IMPROVEMENT),
        undecided=alike.rate(equal, VerdictKind.UNDECIDED),
        found=found,
        passed={size: alike.rate(group, VerdictKind.PASS) for size, group in injected.items()},
        smallest_found=_smallest(claims),
        largest_tried=max((size for size, one in claims.items() if _tells(one)), default=None),
        visible=visible_effect(curve, FOUND_SHARE),
        least_found={size: one.low for size, one in claims.items()},
        median_replicates=float(median(trial.replicates for trial in equal)) if equal else math.nan,
        slowest_gpu_seconds=max((trial.gpu_seconds for trial in equal), default=math.nan),
    )


def _smallest(found: dict[float, Rate]) -> float | None:
    smallest = None
    for size in sorted(found, reverse=True):
        if found[size].total >= FEWEST_TRIALS and found[size].value < FOUND_SHARE:
            break
        if found[size].low >= FOUND_SHARE:
            smallest = size
    return smallest


def _tells(found: Rate) -> bool:
    """Whether the trials of a size are an objection to a claim, or enough for one if all of them were found."""
    if found.total >= FEWEST_TRIALS and found.value < FOUND_SHARE:
        return True
    worth = found.total if found.effective is None else found.effective
    return bool(worth > 0 and ((1 - CLAIM_LEVEL) / 2) ** (1 / worth) >= FOUND_SHARE)


def as_trials(trials: Iterable[InjectedTrial], ground_truths: Iterable[GroundTruth]) -> list[Trial]:
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
            groups.setdefault(trial.place, (*call_class(trial.time_us, trial.launches), nearest))
            sizes[groups[trial.place]][trial.place] = truth
    mean = {group: math.fsum(found.values()) / len(found) for group, found in sizes.items()}
    return [
        Trial(
            time_us=trial.time_us,
            injected=mean[groups[trial.place]] if trial.place.nominal > 0 else 0.0,
            kind=trial.verdict,
            cluster=(trial.place.session, trial.place.case, trial.place.kernel),
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
            found.append(f"{place.kernel} on {place.case}, {place.injection} for {100 * place.nominal:.1f} %: {seen}")
    return found


def _known(truth: GroundTruth) -> bool:
    low, slowdown, high = truth.change.low - 1, truth.change.value - 1, truth.change.high - 1
    return slowdown > 0 and low > slowdown / TRUTH_FACTOR and high < slowdown * TRUTH_FACTOR
