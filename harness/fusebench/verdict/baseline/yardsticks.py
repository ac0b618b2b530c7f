"""Yardsticks: the reference times of kernels when two runs are compared, and the drift of the yardsticks themselves.

A ratio to a yardstick of the same rounds cancels clocks and machine differences.  One case's streaming yardstick scatters between runs
nearly as much as a kernel does, and a ratio to it has the scatter of both.  A difference that two runs have for all calls alike (a clock, a
board, a driver) shows in the streaming yardsticks of all cases, and their median hardly scatters.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from ...schema import CHANGES, CaseSummary, Estimate, Measurement, Reference, Result, Run, VerdictKind
from ...stats.paired import describe_change
from ..comparability import case_differences
from ..margins.call_classes import DURATION_CLASSES_US, duration_class, makes_several
from ..margins.rule import Judged

FEWEST_CASES = 9
"""With fewer cases the median is known less well than one case's yardstick: of eight, the smallest and the largest are its 95 % bounds, of
nine the second of either side.  Of unchanged kernels of 3 to 10 us, on eight cases drawn from three nightlies, 60 % passed by the median
and 62 % by their own yardsticks; on nine, 79 % and 61 %."""

MOST_OVER_COPIES = (0.03, 0.05, 0.015, 0.01)
"""The largest change of the streaming yardsticks relative to the copies that is noise, by class of duration: twice the largest (1.6, 2.4,
0.7 and 0.3 %) between 28 pairs of nightlies on six boards of one GPU model, rounded up."""
MOST_GAP_US = 0.5
"""A launch gap that changed by more is not taken out of times: it needs a cause.  Between 21 pairs of nightlies on six boards of one GPU
model it changed by 0.24 us at most."""


class Basis(StrEnum):
    """The basis of a verdict."""

    RATIO = "ratio"
    """Time relative to a yardstick of the same run, new over old."""
    RAW = "raw"
    """Raw time, new over old, under an equal fingerprint."""
    NONE = "none"
    """No times were compared."""


class Yardstick(NamedTuple):
    """One yardstick that both runs timed."""

    name: str
    change: Estimate
    """The kernel's time relative to it, new over old."""
    reference: Reference | None = None
    """What the scatter between runs is known by; None for other yardsticks."""
    under_test: bool = False
    """Whether it is itself a kernel under test, which may have changed for the same reason as the judged one."""


class SpeedFinding(NamedTuple):
    """The verdict on one kernel's times, before its code and accuracy are known."""

    kind: VerdictKind
    reason: str
    change: Estimate | None
    """New over old; None if no times were compared."""
    basis: Basis
    yardstick_slower_too: bool = False
    """Whether the kernel became slower, and so did the yardstick that it is compared with."""
    reference: Reference | None = None
    """Of the scatter between runs that `change` has its interval from; None for an interval of these processes only."""


Judge = Callable[[Estimate, Reference | None], Judged]
"""The margin rule for one kernel: a change and its reference in, the verdict and its sentence out."""


class Drift(msgspec.Struct, frozen=True):
    """How the streaming yardsticks of one class of duration changed between two runs."""

    factor: Estimate
    """Time in the new run over that in the old one."""
    cases: int
    over_copies: float | None = None
    """The change of the streaming yardsticks over that of the copy yardsticks, minus 1; None without copies."""
    most_over_copies: float = math.inf
    """The largest such change by which the two kinds of yardsticks agree."""

    @property
    def disagreement(self) -> str:
        """Why the drift may be the yardsticks' own; empty where the copies confirm it."""
        if self.over_copies is None or abs(self.over_copies) <= self.most_over_copies:
            return ""
        return (
            f"the streaming yardsticks of {self.cases} cases changed by {100 * self.over_copies:+.1f} % relative to the copies "
            f"({100 * self.most_over_copies:.1f} % is usual), so the yardstick changed"
        )


class LaunchGap(msgspec.Struct, frozen=True):
    """How the time between two launches of one call changed between two runs: the median over calls of several launches.

    The driver and the host make it, not the kernel.  Taking it out brings the 95 % range of unchanged calls of two boards from 4.7 to 3.0 %
    at 10 to 50 us, and from 2.9 to 1.6 % from 50 us on.
    """

    change_us: float
    calls: int


Boards = tuple[str, str]
"""The boards that measured a case: `CaseSummary.board` in the new run and in the old one."""
Drifts = Mapping[int | tuple[int, Boards], Drift]
"""By class of duration, the drift over all cases; with the boards as well, the drift of their cases alone."""


def yardstick_drifts(run: Run, baseline: Run) -> dict[int | tuple[int, Boards], Drift]:
    """The drift from `baseline` to `run`, by class of duration of the yardstick in `run`; classes below `FEWEST_CASES` are left out.

    Where a record is of several boards, each pair of boards with enough cases has a drift of its own beside the common one.

    A case counts where both runs timed the same streaming yardstick in the cache state of its label, with the same parameters.  Cases that
    repeat another case's work count once.
    """
    old = {summary.case.key: summary for summary in baseline.cases}
    logs: dict[int | tuple[int, Boards], list[float]] = defaultdict(list)
    over: dict[int | tuple[int, Boards], list[float]] = defaultdict(list)
    for summary in run.cases:
        before = old.get(summary.case.key)
        if before is None or summary.stream_us is None or before.stream_us is None or summary.same_as:
            continue
        if not (summary.not_cold or before.not_cold or other_stream(summary, before) or case_differences(summary.case, before.case)):
            duration, log = duration_class(summary.stream_us.value), math.log(summary.stream_us.value / before.stream_us.value)
            boards = (summary.board, before.board)
            for place in (duration, (duration, boards)) if any(boards) else (duration,):
                logs[place].append(log)
                if summary.copy_us is not None and before.copy_us is not None:
                    over[place].append(log - math.log(summary.copy_us.value / before.copy_us.value))
    known = {place: each for place, each in logs.items() if len(each) >= FEWEST_CASES}
    return {place: _drift(place if isinstance(place, int) else place[0], each, over[place]) for place, each in known.items()}


def _drift(duration: int, logs: Sequence[float], over_copies: Sequence[float]) -> Drift:
    known = math.expm1(statistics.median(over_copies)) if len(over_copies) >= FEWEST_CASES else None
    return Drift(median_of_logs(logs), len(logs), known, MOST_OVER_COPIES[duration])


def other_stream(new: CaseSummary, old: CaseSummary) -> bool:
    """Whether the streaming yardsticks were launched differently: their times are then those of two yardsticks."""
    return new.stream_shape != old.stream_shape


def drift_of(summary: CaseSummary, drifts: Drifts, old: CaseSummary | None = None) -> Drift | None:
    """The drift of the class of the case's yardstick; None if the case has no yardstick, or its class too few cases.

    With `old`, the case in the older run, that of their boards' cases alone where these are enough.
    """
    if summary.stream_us is None:
        return None
    duration = duration_class(summary.stream_us.value)
    own = drifts.get((duration, (summary.board, old.board))) if old is not None else None
    return own if own is not None else drifts.get(duration)


class LaunchGaps:
    """The changes of the launch gap from `baseline` to `run`: of all calls, by language, and by the processes of `run` that timed them.

    A process keeps its gap for its whole life, in all cases: in a nightly on an H200 the medians of five processes were 1.31 to 1.49 us.
    Torch launches by another way than Triton: between two nightlies its gap grew by 0.2 us more.

    Calls below the longest class of durations count, where a gap is not small beside the scatter of the kernels.  Kernels of changed code
    and advisory ones do not.  Gaps of fewer than `FEWEST_CASES` calls, or that changed by more than `MOST_GAP_US`, are not known.
    """

    def __init__(self, run: Run, baseline: Run, drifts: Drifts) -> None:
        self._languages = {one.id: one.language for one in run.kernels}
        changes: dict[_Launches, list[float]] = defaultdict(list)
        for new, change in _gap_changes(run, baseline, drifts):
            for launches in self._ways(new):
                changes[launches].append(change)
        medians = {launches: LaunchGap(statistics.median(each), len(each)) for launches, each in changes.items()}
        self._known = {
            launches: gap for launches, gap in medians.items() if gap.calls >= FEWEST_CASES and abs(gap.change_us) <= MOST_GAP_US
        }

    def of(self, new: Result) -> LaunchGap | None:
        """The change of the gap of the result's launches, by as much of them as is known; None for calls of one launch."""
        if new.measurement is None or not makes_several(new.measurement.kernels):
            return None
        return next((self._known[launches] for launches in self._ways(new) if launches in self._known), None)

    def _ways(self, new: Result) -> tuple[_Launches, ...]:
        """What the result's launches are counted among, the narrowest first."""
        timing = new.measurement
        assert timing is not None
        language = self._languages.get(new.kernel)
        return (language, timing.looks > 1, timing.processes), (language,), ()


_Launches = tuple[object, ...]


def _gap_changes(run: Run, baseline: Run, drifts: Drifts) -> Iterator[tuple[Result, float]]:
    """The short calls of several launches that both runs timed, with the change of the time between two launches, in microseconds."""
    cases = {summary.case.key: summary for summary in run.cases}
    before = {(one.case_key, one.kernel): one for one in baseline.results}
    known = {summary.case.key: summary for summary in baseline.cases}
    for new in run.results:
        if new.measurement is None or not makes_several(new.measurement.kernels):
            continue
        key = new.case_key
        old, now, then = before.get((key, new.kernel)), cases.get(key), known.get(key)
        if old is None or now is None or then is None or now.same_as or now.not_cold or then.not_cold:
            continue
        timings = _several_alike(new, old)
        if timings is None or (drift := drift_of(now, drifts, then)) is None or case_differences(now.case, then.case):
            continue
        after, earlier = timings
        yield new, (after.time_us.value / drift.factor.value - earlier.time_us.value) / (after.kernels - 1)


def _several_alike(new: Result, old: Result) -> tuple[Measurement, Measurement] | None:
    """The two timings of a short call that made the same number of launches; None for any other call."""
    now, then = new.measurement, old.measurement
    if new.suspicious or old.suspicious:
        return None
    if now is None or then is None or not new.speed_gates or (new.code and old.code and new.code != old.code):
        return None
    return (now, then) if now.kernels == then.kernels and now.time_us.value < DURATION_CLASSES_US[-1] else None


def relative_to_machine(new: Measurement, old: Measurement, drift: Drift, gap: LaunchGap | None) -> float:
    """The kernel's time, new over old, without what changed for all calls: the drift of the streaming yardsticks and the launch gap."""
    time_us = new.time_us.value / drift.factor.value
    if gap is not None:
        without = time_us - gap.change_us * (new.kernels - 1)
        time_us = without if without > 0 else time_us
    return time_us / old.time_us.value


def median_of_logs(logs: Sequence[float], level: float = 0.95) -> Estimate:
    """The median's antilogarithm.  Its interval inverts the sign test: it lies between order statistics, whatever the distribution."""
    ordered = sorted(logs)
    tail, below, rank = (1.0 - level) / 2.0, 0.5 ** len(ordered), 0
    while below <= tail:
        rank += 1
        below += math.comb(len(ordered), rank) * 0.5 ** len(ordered)
    if rank == 0:
        return Estimate(math.exp(statistics.median(ordered)), 0.0, math.inf, level)
    return Estimate(math.exp(statistics.median(ordered)), math.exp(ordered[rank - 1]), math.exp(ordered[-rank]), level)


def machine_finding(first: Yardstick, disagreement: str, raw: Estimate, judge: Judge) -> SpeedFinding:
    """The finding relative to the machine; undecided where the yardsticks disagree and raw times say otherwise.

    Args:
        first: the change relative to the machine.
        disagreement: `Drift.disagreement`.
        raw: the kernel's raw time, new over old.
        judge: the margin rule for this kernel.
    """
    kind, told, _ = judge(first.change, first.reference)
    reason = f"relative to {first.name}: {told}"
    raw_kind = judge(raw, None).kind if disagreement else kind
    if raw_kind is kind:
        return SpeedFinding(kind, reason, first.change, Basis.RATIO, reference=first.reference)
    why = f"{disagreement}; in raw time {describe_change(raw)} ({reason})"
    return SpeedFinding(VerdictKind.UNDECIDED, why, first.change, Basis.RATIO, raw_kind is VerdictKind.REGRESSION, first.reference)


def relative_finding(first: Yardstick, others: Iterable[Yardstick], raw: Estimate, judge: Judge, *, same_machine: bool) -> SpeedFinding:
    """The finding relative to the first yardstick, unless another yardstick or the raw time shows that the kernel is not the cause.

    On one machine a kernel that takes no longer in raw time has not become slower for certain: the baseline's yardsticks may have been
    disturbed.  On two cores a stream and a copy of 33 and 26 us took 61 and 43 us in one process.  An unchanged chain that took 15 % less
    in raw time would have been called 54 % slower, by eight fresh processes.

    Args:
        first: the most trusted yardstick.
        others: the rest, the most trusted first; they are computed only where they are needed.
        raw: the kernel's raw time, new over old.
        judge: the margin rule for this kernel.
        same_machine: whether both runs are of one board and toolchain, so that raw times compare.
    """
    change = first.change
    kind, told, _ = judge(change, first.reference)
    reason = f"relative to {first.name}: {told}"
    moved = kind in CHANGES
    slower = kind in (VerdictKind.PASS, VerdictKind.IMPROVEMENT) and judge(raw, None).kind is VerdictKind.REGRESSION
    asked = list(others) if moved or slower else []
    if moved:
        # Another torch may have changed the yardstick, or something may have disturbed the rounds of this case alone.
        for name, versus, reference, under_test in asked:
            beside = judge(versus, reference)
            if beside.kind is not VerdictKind.PASS or beside.maybe_faster:
                continue
            unchanged = f"relative to {name} {describe_change(versus)}: unchanged"
            if first.reference is not None:  # the scatter says that this is more than noise, so one of the two yardsticks moved
                why = f"{unchanged}, so either the kernel moved or {first.name}; find which ({reason})"
                return SpeedFinding(VerdictKind.UNDECIDED, why, change, Basis.RATIO, reference=first.reference)
            if under_test and kind is VerdictKind.REGRESSION:
                why = f"{unchanged}, so either {first.name} became faster or that kernel slower as well; find what they share ({reason})"
                return SpeedFinding(VerdictKind.UNDECIDED, why, versus, Basis.RATIO, yardstick_slower_too=True)
            return SpeedFinding(VerdictKind.PASS, f"{unchanged}, so what moved is not this kernel ({reason})", versus, Basis.RATIO)
    if slower:
        # The others scatter more than the first, so they count only where raw times moved as well.
        for name, versus, reference, _ in asked:
            if judge(versus, reference).kind is VerdictKind.REGRESSION:
                both = f"relative to {name} {describe_change(versus)}, in raw time {describe_change(raw)}: slower, and {first.name} with it"
                why = f"{both}; find what they share ({reason})"
                # The change stays the one from the first yardstick: the noise floor is made of such changes.
                return SpeedFinding(VerdictKind.UNDECIDED, why, change, Basis.RATIO, yardstick_slower_too=True, reference=first.reference)
    if moved and same_machine and first.reference is None and not _shows(kind, raw, judge):
        why = f"in raw time {describe_change(raw)}, so either the machine changed or {first.name}; measure again ({reason})"
        return SpeedFinding(VerdictKind.UNDECIDED, why, change, Basis.RATIO)
    return SpeedFinding(kind, reason, change, Basis.RATIO, reference=first.reference)


def _shows(kind: VerdictKind, raw: Estimate, judge: Judge) -> bool:
    """Whether the raw time, new over old, lies on the same side as a change of this `kind`, and not inside the margin for certain."""
    beside = judge(raw, None)
    if beside.kind is VerdictKind.PASS and not beside.maybe_faster:
        return False
    return raw.value > 1.0 if kind is VerdictKind.REGRESSION else raw.value < 1.0
