"""A run judged against a baseline: for every kernel and case the strongest comparison that the two records allow.

Strongest first: the ratio to a yardstick timed in the same rounds, in which clocks and machine differences cancel; then raw time, only
under an equal fingerprint; else none. Every result counts: a result that only one run holds is reported as missing or new.

The streaming yardstick is a single elementwise launch over the case's bytes: it scatters least and is no kernel under test.  The yardsticks
of all cases of one class of duration count together (`verdict.baseline.yardsticks`); where they are too few, the case's own counts.
docs/statistics.md has the measurements behind this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from ...schema import FAILED_STATUSES, Estimate, Measurement, Reference, Result, Role, Run, Status, Verdict, VerdictKind
from ...stats.paired import quotient
from ..accuracy_change import with_accuracy
from ..comparability import board_differences, case_differences, fingerprint_differences, harness_differences, record_differences
from ..identical_code import verdict_on_unchanged
from ..margins.call_classes import launches_of, makes_several
from ..margins.rule import MORE_REPLICATES, MarginRule
from ..margins.support import MOST_ERROR, board_of, change_between, is_disturbed, own_variance
from .yardsticks import (
    Basis,
    Drift,
    Judge,
    LaunchGaps,
    SpeedFinding,
    Yardstick,
    drift_of,
    machine_finding,
    other_stream,
    relative_finding,
    relative_to_machine,
    yardstick_drifts,
)


class Presence(StrEnum):
    """Which of the two runs hold the kernel and case."""

    COMMON = "common"
    MISSING = "missing"
    """In the baseline and not in the run: the suite has shrunk."""
    NEW = "new"
    """In the run and not in the baseline: nothing to judge it by."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one kernel and case, and its basis."""

    case: str
    suite: str
    kernel: str
    role: Role
    verdict: Verdict
    basis: Basis
    presence: Presence = Presence.COMMON
    same_code: bool | None = None
    """Whether both runs launched the same machine code; None if either record lacks the digest."""
    kind_by_times: VerdictKind | None = None
    """The verdict by times alone on identical code; None for other code."""
    reference: Reference | None = None
    """Of the scatter between runs that the change has its interval from; None where the interval covers these processes only."""


def judge_each(run: Run, baseline: Run, rule: MarginRule) -> list[Judgement]:
    """One judgement for every kernel and case that either run measured, checked or failed.

    Kernels that neither run could run (declined, not runnable) have none, nor do kernels that cover a part of their op,
    unless they failed.  Order: the run's, then what is missing from it.
    """
    judge = _Judge(run, baseline, rule)
    new, old = _index(run), _index(baseline)
    keys = [*new, *(key for key in old if key not in new)]
    return [judgement for key in keys if (judgement := judge.pair(new.get(key), old.get(key))) is not None]


class _Judge:
    """Two runs and a rule; `pair` judges one kernel and case."""

    def __init__(self, run: Run, baseline: Run, rule: MarginRule) -> None:
        self.rule = rule
        self.new_cases = {summary.case.key: summary for summary in run.cases}
        self.old_cases = {summary.case.key: summary for summary in baseline.cases}
        self.new_suites = tuple(dict.fromkeys(summary.case.suite for summary in run.cases))
        self.old_suites = tuple(summary.name for summary in baseline.suites)
        self.run, self.baseline = run, baseline
        self.drifts = yardstick_drifts(run, baseline)
        self.gaps = LaunchGaps(run, baseline, self.drifts)
        self.differences = record_differences(run, baseline)
        self.raw_differences = fingerprint_differences(run, baseline)
        self.board_differences = board_differences(run, baseline)
        self.other_differences = [*self.raw_differences, *self.board_differences, *harness_differences(run, baseline)]

    def pair(self, new: Result | None, old: Result | None) -> Judgement | None:
        """The judgement on one kernel and case; None if neither run measured, checked or failed it."""
        if new is not None and new.status in FAILED_STATUSES:
            return _judgement(new, VerdictKind.ERROR, f"{new.status}: {new.reason or 'no reason recorded'}", presence=_presence(old))
        if new is not None and new.covers:  # the time of a part of the op is compared with nothing
            return self._now_a_part(new) if _ran(old) and old is not None and not old.covers else None
        if old is not None and old.covers:
            old = None
        if not _ran(new):
            return self._gone(new, old) if old is not None and _ran(old) else None
        assert new is not None
        if old is None or not _ran(old):
            why = f"the baseline has no measurement of it ({old.status}: {_gist(old.reason)})" if old is not None else self._why_new(new)
            return _judgement(new, VerdictKind.INCOMPARABLE, why, presence=Presence.NEW)
        differences = self.differences + self._case_differences(new.case_key) + self._cold_labels_refused(new.case_key)
        records = (("baseline", old), ("run", new))
        differences += [f"trust: the time in the {which} is suspicious: {one.suspicious}" for which, one in records if one.suspicious]
        if differences:
            return _judgement(new, VerdictKind.INCOMPARABLE, "differs from the baseline in " + "; ".join(differences))
        return self._common(new, old)

    def _gone(self, new: Result | None, old: Result) -> Judgement:
        if new is None:
            case_left = old.case_key in self.new_cases
            what = "this kernel is not in the run" if case_left else "this case is not in the run"
            if old.suite not in self.new_suites:
                what = f"suite: {old.suite} -> {', '.join(self.new_suites)}"
            return _judgement(old, VerdictKind.INCOMPARABLE, f"{old.status} in the baseline; {what}", presence=Presence.MISSING)
        reason = f"{old.status} in the baseline; now {new.status}: {new.reason or 'no reason recorded'}"
        kind = VerdictKind.UNDECIDED if new.status is Status.NOT_MEASURED else VerdictKind.INCOMPARABLE
        return _judgement(new, kind, reason, presence=Presence.MISSING)

    def _why_new(self, new: Result) -> str:
        if new.suite in self.old_suites:
            return "not in the baseline"
        return f"not in the baseline, which is of another suite: {', '.join(self.old_suites)} -> {new.suite}"

    def _now_a_part(self, new: Result) -> Judgement:
        reason = f"all of the op in the baseline; now it covers only a part of it: {new.covers}"
        if new.outside_contract:
            reason = f"within the contract in the baseline; now {new.covers}"
        return _judgement(new, VerdictKind.INCOMPARABLE, reason, presence=Presence.MISSING)

    def _cold_labels_refused(self, key: str) -> list[str]:
        """The records in which a case's samples are labelled `cold` and are not."""
        records = (("baseline", self.old_cases), ("run", self.new_cases))
        return [
            f"cache state: the {which} is labelled cold, but {cases[key].not_cold}"
            for which, cases in records
            if key in cases and cases[key].not_cold
        ]

    def _case_differences(self, key: str) -> list[str]:
        new, old = self.new_cases.get(key), self.old_cases.get(key)
        if new is None or old is None:
            return ["the case's definition, which one of the records lacks"]
        return case_differences(new.case, old.case)

    def _common(self, new: Result, old: Result) -> Judgement:
        found = self._speed(new, old)
        change, basis = found.change, found.basis
        speed = Verdict(kind=found.kind, reason=found.reason, change=change)
        same_code = new.code == old.code if new.code is not None and old.code is not None else None
        unchanged = same_code is True and change is not None
        if unchanged:
            # A common slowdown of all kernels is not noise of this one: it needs a cause, as a regression does.
            by_times = msgspec.structs.replace(speed, kind=VerdictKind.REGRESSION) if found.yardstick_slower_too else speed
            known = found.reference is not None
            speed = verdict_on_unchanged(by_times, self.other_differences, noise_known=known, disturbed=_disturbed(new, old, change))
        if change is not None and new.measurement is not None and self._remeasured(new.case_key, new.measurement):
            again = f"measured in {new.measurement.processes} fresh processes, because it was a suspect after the first"
            speed = msgspec.structs.replace(speed, reason=f"{speed.reason}; {again}")
        verdict = with_accuracy(speed, new.accuracy, old.accuracy, same_code=same_code is True)
        judgement = _judgement(new, verdict.kind, verdict.reason, change=change, basis=basis)
        if change is not None and verdict == speed:  # the verdict rests on the times alone
            verdict = msgspec.structs.replace(judgement.verdict, gating=new.speed_gates)
            judgement = msgspec.structs.replace(judgement, verdict=verdict)
        return msgspec.structs.replace(
            judgement, same_code=same_code, kind_by_times=found.kind if unchanged else None, reference=found.reference
        )

    def _remeasured(self, key: str, timing: Measurement) -> bool:
        """Whether the time is of fresh processes; in older records those of all kernels of a suspect's case are."""
        plan = self.run.plan
        older = bool(self.new_cases[key].suspicion) and plan.precision is None and timing.processes > plan.processes
        return timing.looks > 1 or older

    def _speed(self, new: Result, old: Result) -> SpeedFinding:
        if new.measurement is None or old.measurement is None:
            if new.status is old.status and new.accuracy is not None and old.accuracy is not None:
                return SpeedFinding(VerdictKind.PASS, "accuracy alone was compared: neither run timed it", None, Basis.NONE)
            return SpeedFinding(VerdictKind.INCOMPARABLE, f"{old.status} in the baseline, {new.status} now: no two times", None, Basis.NONE)
        raw = quotient(new.measurement.time_us, old.measurement.time_us)
        judge = self._judged_by(new.measurement, old.measurement)
        drift = drift_of(self.new_cases[new.case_key], self.drifts, self.old_cases.get(old.case_key))
        if drift is not None and (machine := self._by_machine(new, old, drift)) is not None:
            return machine_finding(machine, drift.disagreement, raw, judge)
        yardsticks = self._yardsticks(new, old, raw)
        if (first := next(yardsticks, None)) is not None:
            same_machine = not self.raw_differences and not self.board_differences
            return relative_finding(first, yardsticks, raw, judge, same_machine=same_machine)
        if self.raw_differences:
            why = "no yardstick that both runs timed, and raw times differ in " + "; ".join(self.raw_differences)
            return SpeedFinding(VerdictKind.INCOMPARABLE, why, None, Basis.NONE)
        kind, reason, _ = judge(raw, None)
        return SpeedFinding(kind, f"raw time: {reason}", raw, Basis.RAW)

    def _judged_by(self, new: Measurement, old: Measurement) -> Judge:
        """The rule, for changes of this kernel on this case."""
        launches, remedy = launches_of(new, old), MORE_REPLICATES
        if is_disturbed(own_variance(old)):
            error = f"the baseline's own time has a standard error of {_own_error(old)}"
            remedy = f"{error}: join quiet runs to it, by `fusebench baseline promote RUN --add`"
        return lambda change, reference: self.rule.judge(change, new.time_us.value, launches, reference, looks=new.looks, remedy=remedy)

    def _by_machine(self, new: Result, old: Result, drift: Drift) -> Yardstick | None:
        """The change relative to the machine, with its interval from the scatter between runs; None where that is not known."""
        assert new.measurement is not None
        assert old.measurement is not None
        gap = self.gaps.of(new)
        ratio = relative_to_machine(new.measurement, old.measurement, drift, gap)
        change = self._scattered(ratio, new.case_key, new.measurement, old.measurement, Reference.MACHINE)
        if change is None:
            return None
        name = f"the streaming yardsticks of {drift.cases} cases"
        if gap is not None:
            name += f" and the launch gaps of {gap.calls} calls"
        return Yardstick(name, change, Reference.MACHINE)

    def _scattered(self, ratio: float, key: str, new: Measurement, old: Measurement, reference: Reference) -> Estimate | None:
        """The change with the interval for another process and board; None where their scatter is not known."""
        scatter = self.rule.scatter_of(new.time_us.value, launches_of(new, old), reference)
        if scatter is None or not self.rule.knows(self.run):
            return None
        widening = self.rule.widening_of(new.time_us.value, launches_of(new, old))
        boards = (board_of(self.new_cases[key], self.run), board_of(self.old_cases[key], self.baseline))
        return change_between(math.log(ratio), (new, self.run), (old, self.baseline), scatter, widening, boards=boards)

    def _yardsticks(self, new: Result, old: Result, raw: Estimate) -> Iterator[Yardstick]:
        """The yardsticks that both runs timed, the most trusted first: the streaming yardsticks of all cases of that duration, the case's
        own, the copy yardstick.  The case's baseline kernel, itself under test, is added where there is at most one other.

        One by one, because most kernels need only the first."""
        assert new.measurement is not None
        assert old.measurement is not None
        now, then = self.new_cases[new.case_key], self.old_cases[old.case_key]
        found = 0
        if (drift := drift_of(now, self.drifts, then)) is not None:
            yield Yardstick(f"the streaming yardsticks of {drift.cases} cases", quotient(raw, drift.factor))
            found += 1
        for name, new_us, old_us, reference in (
            ("the streaming yardstick", now.stream_us, None if other_stream(now, then) else then.stream_us, Reference.CASE),
            ("the copy yardstick", now.copy_us, then.copy_us, None),
        ):
            if new_us is not None and old_us is not None:
                change = quotient(quotient(new.measurement.time_us, new_us), quotient(old.measurement.time_us, old_us))
                timings = (new.measurement, old.measurement)
                known = self._scattered(change.value, new.case_key, *timings, reference) if reference is not None else None
                yield Yardstick(name, change, None) if known is None else Yardstick(name, known, reference)
                found += 1
        speedups = old.measurement.speedup, new.measurement.speedup
        if found < 2 and now.baseline == then.baseline and speedups[0] is not None and speedups[1] is not None:
            yield Yardstick(str(now.baseline), quotient(speedups[0], speedups[1]), under_test=True)


def results_by_place(run: Run) -> dict[tuple[str, str, str], Result]:
    """The run's results by suite, case and kernel."""
    return {(result.suite, result.case, result.kernel): result for result in run.results}


def _index(run: Run) -> dict[tuple[str, str], Result]:
    return {(result.case_key, result.kernel): result for result in run.results}


def _disturbed(new: Result, old: Result, change: Estimate | None) -> str:
    """What shows that the new time is far off by chance, in words; empty if nothing does."""
    now, then = new.measurement, old.measurement
    if now is None or then is None or change is None or abs(math.log(change.value)) <= MOST_ERROR or not is_disturbed(own_variance(now)):
        return ""
    units = "processes" if now.processes > 1 else "placements"
    text = f"its {units} differ, standard error {_own_error(now)}"
    if makes_several(now.kernels) and now.gap_us is not None and then.gap_us is not None:
        text += f", and the GPU idled {now.gap_us:.1f} us inside of a call, {then.gap_us:.1f} us in the baseline, as where the host is late"
    return text


def _own_error(timing: Measurement) -> str:
    """The standard error of a time as its own run knows it, in words."""
    return f"{100 * math.sqrt(own_variance(timing)):.0f} %"


def _ran(result: Result | None) -> bool:
    return result is not None and result.status in (Status.MEASURED, Status.CHECKED)


def _gist(reason: str) -> str:
    """The first sentence of an error, whose rest is in the record: one for lack of memory goes on for ten."""
    return reason.partition(". ")[0]


def _presence(old: Result | None) -> Presence:
    return Presence.NEW if old is None else Presence.COMMON


def _judgement(
    result: Result,
    kind: VerdictKind,
    reason: str,
    *,
    change: Estimate | None = None,
    basis: Basis = Basis.NONE,
    presence: Presence = Presence.COMMON,
) -> Judgement:
    return Judgement(
        case=result.case,
        suite=result.suite,
        kernel=result.kernel,
        role=result.role,
        verdict=Verdict(kind=kind, reason=reason, change=change, gating=result.role_gates),
        basis=basis,
        presence=presence,
    )
