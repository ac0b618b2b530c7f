"""A run judged against a baseline: for every kernel and case the strongest comparison that the two records allow.

Strongest first: the ratio to a yardstick timed in the same rounds (the case's baseline kernel, else the copy), in which clocks and
machine differences cancel; then raw time, only under an equal fingerprint; else none.  Nothing is dropped: what only one of the
two runs holds is reported as missing or new.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from ..schema import (
    FAILED_STATUSES,
    CaseSummary,
    Estimate,
    ExitCode,
    Result,
    Role,
    Run,
    Status,
    Verdict,
    VerdictKind,
    worst_exit_code,
)
from .accuracy_change import with_accuracy
from .comparability import board_differences, case_differences, fingerprint_differences, harness_differences, record_differences
from .identical import verdict_on_unchanged
from .paired import quotient
from .rule import Rule, describe_change


class Comparison(StrEnum):
    """What a verdict stands on."""

    RATIO = "ratio"
    """Time relative to a yardstick of the same run, new over old."""
    RAW = "raw"
    """Raw time, new over old, under an equal fingerprint."""
    NONE = "none"
    """No times were compared."""


class Standing(StrEnum):
    """Which of the two runs hold the kernel and case."""

    COMMON = "common"
    MISSING = "missing"
    """In the baseline and not in the run: the suite has shrunk."""
    NEW = "new"
    """In the run and not in the baseline: nothing to judge it by."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one kernel and case, and what it stands on."""

    case: str
    suite: str
    kernel: str
    role: Role
    verdict: Verdict
    comparison: Comparison
    standing: Standing = Standing.COMMON
    same_code: bool | None = None
    """Whether both runs launched the same machine code; None where either does not say."""
    alone: VerdictKind | None = None
    """What the times alone say of identical code; None elsewhere."""


def judge_run(run: Run, baseline: Run, rule: Rule) -> list[Judgement]:
    """One judgement for every kernel and case that either run measured, checked or failed.

    Kernels that neither run could run (declined, not runnable) have none, nor have those that cover a part of their op,
    unless they failed.  Order: the run's, then what is missing from it.
    """
    judge = _Judge(run, baseline, rule)
    new, old = _index(run), _index(baseline)
    keys = [*new, *(key for key in old if key not in new)]
    return [judgement for key in keys if (judgement := judge.pair(new.get(key), old.get(key))) is not None]


def gate_exit_code(judgements: Sequence[Judgement], *, allow_incomparable: bool = False) -> ExitCode:
    """What the judgements amount to.

    Those without a say do not count.  Incomparable and missing ones count as undecided unless allowed; new ones have nothing to be judged
    by and do not count.  Without a single pair that counts the result is undecided: a gate that compared nothing has not passed.
    """
    codes: list[ExitCode] = []
    for judgement in judgements:
        if not judgement.verdict.decides:
            continue
        kind = judgement.verdict.kind
        if kind is VerdictKind.ERROR:
            codes.append(ExitCode.KERNEL_FAILED)
        elif judgement.standing is Standing.NEW:
            continue
        elif kind is VerdictKind.REGRESSION:
            codes.append(ExitCode.REGRESSION)
        elif kind is VerdictKind.UNDECIDED or (kind is VerdictKind.INCOMPARABLE and not allow_incomparable):
            codes.append(ExitCode.UNDECIDED)
        else:
            codes.append(ExitCode.PASS)
    return worst_exit_code(codes or [ExitCode.UNDECIDED])


class _Finding(NamedTuple):
    kind: VerdictKind
    reason: str
    change: Estimate | None
    comparison: Comparison
    shared: bool = False
    """Whether the kernel became slower than the copy, and its yardstick kernel with it or more."""


class _Judge:
    """Two runs and a rule; `pair` judges one kernel and case."""

    def __init__(self, run: Run, baseline: Run, rule: Rule) -> None:
        self.rule = rule
        self.new_cases = {summary.case.key: summary for summary in run.cases}
        self.old_cases = {summary.case.key: summary for summary in baseline.cases}
        self.new_suites = tuple(dict.fromkeys(summary.case.suite for summary in run.cases))
        self.old_suites = tuple(summary.name for summary in baseline.suites)
        self.differences = record_differences(run, baseline)
        self.raw_differences = fingerprint_differences(run, baseline)
        self.circumstances = [*self.raw_differences, *board_differences(run, baseline), *harness_differences(run, baseline)]

    def pair(self, new: Result | None, old: Result | None) -> Judgement | None:
        """The judgement, or None where neither run has anything to say of the kernel."""
        if new is not None and new.status in FAILED_STATUSES:
            return _judgement(new, VerdictKind.ERROR, f"{new.status}: {new.reason or 'no reason recorded'}", standing=_standing(old))
        if new is not None and new.covers:  # the time of a part of the op is compared with nothing
            return self._now_a_part(new) if _ran(old) and old is not None and not old.covers else None
        if old is not None and old.covers:
            old = None
        if not _ran(new):
            return self._gone(new, old) if old is not None and _ran(old) else None
        assert new is not None
        if old is None or not _ran(old):
            why = f"the baseline has no measurement of it ({old.status}: {old.reason})" if old is not None else self._why_new(new)
            return _judgement(new, VerdictKind.INCOMPARABLE, why, standing=Standing.NEW)
        differences = self.differences + self._case_differences(new.case_key) + self._warm(new.case_key)
        if differences:
            return _judgement(new, VerdictKind.INCOMPARABLE, "differs from the baseline in " + "; ".join(differences))
        return self._common(new, old)

    def _gone(self, new: Result | None, old: Result) -> Judgement:
        if new is None:
            case_left = old.case_key in self.new_cases
            what = "this kernel is not in the run" if case_left else "this case is not in the run"
            if old.suite not in self.new_suites:
                what = f"suite: {old.suite} -> {', '.join(self.new_suites)}"
            return _judgement(old, VerdictKind.INCOMPARABLE, f"{old.status} in the baseline; {what}", standing=Standing.MISSING)
        reason = f"{old.status} in the baseline; now {new.status}: {new.reason or 'no reason recorded'}"
        kind = VerdictKind.UNDECIDED if new.status is Status.NOT_MEASURED else VerdictKind.INCOMPARABLE
        return _judgement(new, kind, reason, standing=Standing.MISSING)

    def _why_new(self, new: Result) -> str:
        if new.suite in self.old_suites:
            return "not in the baseline"
        return f"not in the baseline, which is of another suite: {', '.join(self.old_suites)} -> {new.suite}"

    def _now_a_part(self, new: Result) -> Judgement:
        reason = f"all of the op in the baseline; now it covers only a part of it: {new.covers}"
        return _judgement(new, VerdictKind.INCOMPARABLE, reason, standing=Standing.MISSING)

    def _warm(self, key: str) -> list[str]:
        """Where a case's samples carry the label `cold` and are not."""
        sides = (("baseline", self.old_cases), ("run", self.new_cases))
        return [
            f"cache state: the {side} is labelled cold, but {cases[key].not_cold}"
            for side, cases in sides
            if key in cases and cases[key].not_cold
        ]

    def _case_differences(self, key: str) -> list[str]:
        new, old = self.new_cases.get(key), self.old_cases.get(key)
        if new is None or old is None:
            return ["the case's definition, which one of the records lacks"]
        return case_differences(new.case, old.case)

    def _common(self, new: Result, old: Result) -> Judgement:
        found = self._speed(new, old)
        change, comparison = found.change, found.comparison
        speed = Verdict(kind=found.kind, reason=found.reason, change=change)
        same_code = new.code == old.code if new.code is not None and old.code is not None else None
        unchanged = same_code is True and change is not None
        if unchanged:
            # What slows all kernels down alike is no noise of this one: it asks for a cause as a regression does.
            alone = msgspec.structs.replace(speed, kind=VerdictKind.REGRESSION) if found.shared else speed
            speed = verdict_on_unchanged(alone, self.circumstances)
        verdict = with_accuracy(speed, new.accuracy, old.accuracy)
        judgement = _judgement(new, verdict.kind, verdict.reason, change=change, comparison=comparison)
        if change is not None and verdict == speed:  # it stands on the times, and accuracy adds nothing
            verdict = msgspec.structs.replace(judgement.verdict, decides=new.speed_decides)
            judgement = msgspec.structs.replace(judgement, verdict=verdict)
        return msgspec.structs.replace(judgement, same_code=same_code, alone=found.kind if unchanged else None)

    def _speed(self, new: Result, old: Result) -> _Finding:
        if new.measurement is None or old.measurement is None:
            if new.status is old.status and new.accuracy is not None and old.accuracy is not None:
                return _Finding(VerdictKind.PASS, "accuracy alone was compared: neither run timed it", None, Comparison.NONE)
            return _Finding(
                VerdictKind.INCOMPARABLE, f"{old.status} in the baseline, {new.status} now: no two times", None, Comparison.NONE
            )
        time_us = new.measurement.time_us.value
        versus_baseline, versus_copy = self._versus_baseline(new, old), self._versus_copy(new, old)
        if versus_baseline is not None:
            return self._ratio(versus_baseline, versus_copy, time_us, str(self.new_cases[new.case_key].baseline))
        if versus_copy is not None:
            kind, reason = self.rule.judge(versus_copy, time_us)
            return _Finding(kind, f"relative to the copy: {reason}", versus_copy, Comparison.RATIO)
        if self.raw_differences:
            why = "no yardstick that both runs timed, and raw times differ in " + "; ".join(self.raw_differences)
            return _Finding(VerdictKind.INCOMPARABLE, why, None, Comparison.NONE)
        change = quotient(new.measurement.time_us, old.measurement.time_us)
        kind, reason = self.rule.judge(change, time_us)
        return _Finding(kind, f"raw time: {reason}", change, Comparison.RAW)

    def _ratio(self, versus_baseline: Estimate, versus_copy: Estimate | None, time_us: float, yardstick: str) -> _Finding:
        kind, reason = self.rule.judge(versus_baseline, time_us)
        reason = f"relative to {yardstick}: {reason}"
        if versus_copy is not None:
            # The yardstick kernel may itself have moved (another Triton, another driver): the copy tells which one did, or that both did.
            second, _ = self.rule.judge(versus_copy, time_us)
            if kind in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT) and second is VerdictKind.PASS:
                moved = f"relative to the copy {describe_change(versus_copy)}: the yardstick kernel moved, not this one"
                return _Finding(VerdictKind.PASS, f"{moved} ({reason})", versus_copy, Comparison.RATIO)
            if kind in (VerdictKind.PASS, VerdictKind.IMPROVEMENT) and second is VerdictKind.REGRESSION:
                both = f"relative to the copy {describe_change(versus_copy)}: slower, and the yardstick kernel with it"
                why = f"{both}; find what they share ({reason})"
                # The change stays that from the yardstick kernel: it is what others are judged by, and held against as noise.
                return _Finding(VerdictKind.UNDECIDED, why, versus_baseline, Comparison.RATIO, shared=True)
        return _Finding(kind, reason, versus_baseline, Comparison.RATIO)

    def _versus_baseline(self, new: Result, old: Result) -> Estimate | None:
        new_case, old_case = self.new_cases[new.case_key], self.old_cases[old.case_key]
        assert new.measurement is not None
        assert old.measurement is not None
        if new_case.baseline != old_case.baseline or new.measurement.speedup is None or old.measurement.speedup is None:
            return None
        return quotient(old.measurement.speedup, new.measurement.speedup)

    def _versus_copy(self, new: Result, old: Result) -> Estimate | None:
        now, then = _share(new, self.new_cases[new.case_key]), _share(old, self.old_cases[old.case_key])
        return quotient(now, then) if now is not None and then is not None else None


def _share(result: Result, summary: CaseSummary) -> Estimate | None:
    if result.measurement is None or summary.copy_us is None:
        return None
    return quotient(result.measurement.time_us, summary.copy_us)


def _index(run: Run) -> dict[tuple[str, str], Result]:
    return {(result.case_key, result.kernel): result for result in run.results}


def _ran(result: Result | None) -> bool:
    return result is not None and result.status in (Status.MEASURED, Status.CHECKED)


def _standing(old: Result | None) -> Standing:
    return Standing.NEW if old is None else Standing.COMMON


def _judgement(
    result: Result,
    kind: VerdictKind,
    reason: str,
    *,
    change: Estimate | None = None,
    comparison: Comparison = Comparison.NONE,
    standing: Standing = Standing.COMMON,
) -> Judgement:
    return Judgement(
        case=result.case,
        suite=result.suite,
        kernel=result.kernel,
        role=result.role,
        verdict=Verdict(kind=kind, reason=reason, change=change, decides=result.decides),
        comparison=comparison,
        standing=standing,
    )
