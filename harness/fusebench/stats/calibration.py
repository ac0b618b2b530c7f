"""What a machine's own comparisons say of the verdicts made on it: the false-alarm rate and the smallest effect that is found.

From many comparisons whose answer is known (a kernel with itself, or with a copy slowed down by a planted share), by class of kernel
duration, calls of one launch and of several apart: how often equal kernels were called slower, with an upper bound, since none of 1000 is
not never; and how often each planted slowdown was found.  A rate has the exact interval of Clopper and Pearson (Biometrika 26 (1934) 404).

Between the launches of one call the device idles for a time that scatters: on an H200 calls of two launches scattered several times as
much as calls of one launch that took as long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from ..schema import VerdictKind

DURATION_CLASSES_US = (3.0, 10.0, 50.0)
"""Limits between classes of kernel duration: below 3 us latency rules and a clock tick is over 1 %; to 10 us scatter is about twice that
of longer kernels; from 50 us the memory system is busy throughout."""

FOUND_SHARE = 0.95
"""Share of planted slowdowns that must be found for their size to count as visible."""
FEWEST_TRIALS = 20
"""Of a size, for it to be claimed or to speak against a claim.  With fewer, all could be found and 95 % not be what that shows: 19 of 20 is
the first share that is 95 %."""


def durations(low_us: float, high_us: float) -> str:
    """`under 3 us`, `3 to 10 us`, `50 us and more`."""
    if low_us == 0:
        return f"under {high_us:g} us"
    return f"{low_us:g} us and more" if math.isinf(high_us) else f"{low_us:g} to {high_us:g} us"


def duration_class(time_us: float, limits_us: Sequence[float] = DURATION_CLASSES_US) -> int:
    """The number of the class of durations that a kernel of `time_us` microseconds belongs to, from 0."""
    return sum(time_us >= limit for limit in limits_us)


def makes_several(launches: int) -> bool:
    """Whether a call makes several launches.  0, from a timer that sees none, counts with one: such a timer tells no calls apart."""
    return launches > 1


def call_class(time_us: float, launches: int, limits_us: Sequence[float] = DURATION_CLASSES_US) -> tuple[bool, int]:
    """Whether a call makes several launches, and the number of its class of durations.  Classes sort as reports show them."""
    return makes_several(launches), duration_class(time_us, limits_us)


def class_words(low_us: float, high_us: float, several: bool) -> str:
    """`3 to 10 us` for calls of one launch, `3 to 10 us, several launches` for others."""
    return durations(low_us, high_us) + (", several launches" if several else "")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison whose answer is known."""

    time_us: float
    planted: float
    """Slowdown as a share of the time, in time and not in work: 0 for identical arms.  A kernel that does 2 % more work at 3 us is some
    1 % slower."""
    kind: VerdictKind
    launches: int = 1
    """Device activities per call; 0 where the timer saw none."""
    replicates: int = 0
    gpu_seconds: float = 0.0


class Rate(msgspec.Struct, frozen=True):
    """`count` of `total`, with the exact two-sided interval of the rate behind it."""

    count: int
    total: int
    low: float
    high: float
    level: float = 0.95

    @property
    def value(self) -> float:
        """The observed share; NaN for none of none."""
        return self.count / self.total if self.total else math.nan

    def __str__(self) -> str:
        return f"{self.count} of {self.total} ({self.low:.2%} to {self.high:.2%})"


class ClassSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One class of durations, of calls that make one launch or of calls that make several."""

    low_us: float
    high_us: float
    several_launches: bool
    false_regressions: Rate
    """Equal kernels called slower."""
    false_improvements: Rate
    undecided: Rate
    """Equal kernels on which no verdict was reached."""
    found: dict[float, Rate]
    """By planted slowdown, ascending: how often it was called a regression, of however few trials."""
    passed: dict[float, Rate]
    """By planted slowdown: how often it was passed."""
    smallest_found: float | None
    """The smallest planted slowdown of which, and of every larger one, at least 95 % were found; None where there is none.  Only sizes of
    at least `FEWEST_TRIALS` count, here and in what follows."""
    largest_tried: float | None
    """The largest planted slowdown, which is what a missing `smallest_found` exceeds; None where none was planted so often."""
    visible: float | None
    """Where the found share crosses 95 %, interpolated between planted slowdowns; None where it does not."""
    median_replicates: float
    """Replicates that equal kernels took; NaN without any."""
    slowest_gpu_seconds: float
    """The most GPU time that equal kernels took; NaN without any."""

    @property
    def name(self) -> str:
        """`class_words` of it."""
        return class_words(self.low_us, self.high_us, self.several_launches)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a machine."""

    classes: tuple[ClassSummary, ...]
    """Those that had any trial: calls of one launch before calls of several, each with the shortest durations first."""
    false_regressions: Rate
    """Over all classes: the claim that stands in every report, as its upper end."""

    def of(self, time_us: float, launches: int = 1) -> ClassSummary | None:
        """The class of calls that take `time_us` microseconds and make so many launches, or None where it was not calibrated."""
        several = makes_several(launches)
        return next((one for one in self.classes if one.several_launches == several and one.low_us <= time_us < one.high_us), None)


def summarise(trials: Iterable[Trial], limits_us: Sequence[float] = DURATION_CLASSES_US) -> Calibration:
    """What the trials show.

    Raises:
        ValueError: a negative or unbounded planted slowdown, a time that is not positive, or a negative number of launches.
    """
    edges = [0.0, *limits_us, math.inf]
    grouped: dict[tuple[bool, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        if not (0 < trial.time_us < math.inf and 0 <= trial.planted < math.inf and trial.launches >= 0):
            raise ValueError(f"{trial!r}: expected a positive time, and a planted slowdown and launches that are not negative")
        grouped[call_class(trial.time_us, trial.launches, limits_us)].append(trial)
    classes = tuple(_class(edges[place], edges[place + 1], several, grouped[several, place]) for several, place in sorted(grouped))
    equal = [trial for group in grouped.values() for trial in group if trial.planted == 0]
    return Calibration(classes=classes, false_regressions=_rate(equal, VerdictKind.REGRESSION))


def rate(count: int, total: int, level: float = 0.95) -> Rate:
    """Clopper and Pearson's interval for a rate: 0 of 1000 is at most 0.37 % (0.30 % at a one-sided 95 %, which is a `level` of 0.9)."""
    if not 0 <= count <= total or not 0 < level < 1:
        raise ValueError(f"{count} of {total} at level {level!r} is not a rate")
    # Imported here: scipy.special takes a third of a second.
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return Rate(count, total, low, high, level)


def visible_effect(found: dict[float, Rate], share: float = FOUND_SHARE) -> float | None:
    """The slowdown at which the share found crosses `share`, by linear interpolation of a curve made monotone first (a larger slowdown
    cannot truly be found less often: adjacent violators are pooled).  None where it never does, or does so already at the smallest."""
    sizes = sorted(found)
    shares = _pooled([found[size] for size in sizes])
    for below, above, first, second in zip(sizes, sizes[1:], shares, shares[1:], strict=False):
        if first < share <= second:
            return below + (above - below) * (share - first) / (second - first)
    return None


def _class(low: float, high: float, several: bool, trials: Sequence[Trial]) -> ClassSummary:
    equal = [trial for trial in trials if trial.planted == 0]
    planted = {size: [trial for trial in trials if trial.planted == size] for size in sorted({trial.planted for trial in trials} - {0.0})}
    found = {size: _rate(group, VerdictKind.REGRESSION) for size, group in planted.items()}
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
        passed={size: _rate(group, VerdictKind.PASS) for size, group in planted.items()},
        smallest_found=_smallest(tried),
        largest_tried=max(tried, default=None),
        visible=visible_effect(curve),
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


def _pooled(rates: Sequence[Rate]) -> list[float]:
    """Shares made non-decreasing: neighbours in the wrong order are replaced by their common share."""
    blocks: list[tuple[int, int, int]] = []  # found, tried, sizes pooled
    for one in rates:
        block = (one.count, one.total, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    return [count / total if total else math.nan for count, total, sizes in blocks for _ in range(sizes)]
