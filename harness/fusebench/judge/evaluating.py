"""One evaluation in progress: the cases that its stage draws, one after another, to the document."""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..accuracy.shared_draws import Draws
from ..runner.workers.checking import INTERPRETER_ROWS
from ..schema import Case, Estimate
from ..schema.evaluation import CaseEvaluation, Evaluation, EvaluationStatus, Stage
from ..stats.paired import ratio_estimate, time_estimate
from . import stages
from .channel.protocol import CaseOpened, OpenCase, Yardstick, YardstickDone
from .channel.tasks import EvaluateTask, Step
from .compiled_code import JUDGED
from .crosscheck import (
    TimedBatches,
    believed_us,
    contradiction,
    credited_us,
    late_host,
    late_work,
    unclaimed_us,
    unexcluded_us,
    untimed_batches,
)
from .exchange import Exchange
from .failures import CandidateError
from .judging import CaseJudge, CaseJudgement
from .layouts import other_layout, two_samples
from .loaded_candidate import LoadedCandidate
from .patience import HUNG_AFTER_S
from .phases import BASELINE, READY, SPLIT_CALLS, WARM, Phases
from .process import KernelProcess

if TYPE_CHECKING:
    from .judge import Judge

_TOLD_LAST = (EvaluationStatus.PASSED, EvaluationStatus.UNSUPPORTED)
_MAY_DECLINE = (EvaluationStatus.CRASHED, EvaluationStatus.COMPILE_ERROR)
_INTERPRETED_S, _LONGER_CALLS = 4.0, 2
"""Time for a call of a longer shape in Triton's interpreter, roughly, and the number of calls that are compared at longer shapes."""
_MARGIN = 1.5
"""Multiple of the time of a case that the next one is granted: cases differ in heads and channels."""


class Evaluating(LoadedCandidate):
    """One evaluation in progress."""

    def __init__(
        self, judge: Judge, task: EvaluateTask, process: KernelProcess, source: bytes, *, report: Callable[[Step], None], deadline: float
    ) -> None:
        super().__init__(judge, task, process, source, report=report, deadline=deadline)
        self._source = source
        self._began = time.monotonic()
        left = self._limits.deadline - self._began
        self._planned = self._began + stages.planned_s(task.stage, self._device.type, left)
        """When the stage plans to be done."""
        self._small_left, self._longer_left = stages.CHECK_CASES, stages.LONGER_CASES
        self._layouts_s = 0.0
        """Seconds that comparisons in other layouts took, which those of other cases then do without."""
        self._layouts_left = stages.LAYOUT_CASES[task.stage]
        self._drawn = 0
        """Cases that the stage judges."""
        self._whole: dict[str, Any] = {}
        """Parameters of the cases that were cut, by key."""

    def run(self) -> Evaluation:
        """The document, without the time that it took."""
        cases: list[CaseEvaluation] = []
        weights: list[float] = []
        status, reason = EvaluationStatus.PASSED, ""
        try:
            todo = self._todo()
            self._warm_up([params for _, params in todo])
            with self._phases.timed(READY):
                self._process.until_ready()
            self._load()
            if len(self._task.cases) > self._drawn:
                self._remarks.append(
                    f"Judged on {self._drawn} of {len(self._task.cases)} cases, drawn anew each time; --stage final judges all, "
                    "--case names some."
                )
            left_out: list[Case] = []
            for number, (case, params) in enumerate(todo, 1):
                if cases and self._task.stage is not Stage.FINAL and not self._time_for_another(len(cases)):
                    left_out = [case for case, _ in todo[number - 1 :]]
                    which = "the time is too short" if not self._interpreted else "Triton's interpreter leaves no time"
                    self._remarks.append(f"Judged on {len(cases)} of {len(todo)} cases: {which} for more.")
                    break
                self._report(Step(text=f"judging {case.key}", case=number, cases=len(todo)))
                cases.append(self._case(case, params, share=1 / (len(todo) - number + 1)))
                weights.append(case.weight)
                if cases[-1].status not in _TOLD_LAST:
                    break
            if cases and cases[-1].status in _TOLD_LAST:
                cases += self._others([case for case, _ in todo if case not in left_out], left_out)
        except CandidateError as error:
            status, reason = error.status, error.reason
        failed = next((case for case in cases if case.status not in _TOLD_LAST), None)
        if failed is not None:
            status, reason = failed.status, failed.reason
        elif status is EvaluationStatus.PASSED and all(case.status is EvaluationStatus.UNSUPPORTED for case in cases):
            status = EvaluationStatus.UNSUPPORTED
            reason = cases[0].reason if cases else "no case was selected"
        declined = sum(case.status is EvaluationStatus.UNSUPPORTED for case in cases)
        if declined and status is EvaluationStatus.PASSED:
            self._remarks.append(f"It declines {declined} of {len(cases)} cases; a speedup says nothing of them.")
        weights += [0.0] * (len(cases) - len(weights))
        evaluation = Evaluation(
            status=status,
            reason=reason,
            op=self._task.op,
            kernel=self._loaded.kernel if self._loaded is not None else "",
            stage=self._task.stage,
            device=self._task.device_name,
            file=self._task.shown,
            file_sha256=hashlib.sha256(self._source).hexdigest(),
            cases=tuple(cases),
            first_failure=failed.key if failed is not None else None,
            speedup=_weighted(cases, weights) if status is EvaluationStatus.PASSED else None,
            remarks=tuple(dict.fromkeys(self._remarks)),
            isolation=(*self._process.isolation, self._judge.protection),
            output_tail=self._process.output_tail(),
        )
        return self._with_code(evaluation) if status in JUDGED else evaluation

    @property
    def phases(self) -> Phases:
        """Where the time goes."""
        return self._phases

    def _warm_up(self, shapes: Sequence[Any]) -> None:
        """Draw once while the candidate's process starts: the first draw of a judge loads its operators, and starts its device."""
        if shapes and not self._process.ready:
            with self._phases.timed(WARM):
                small = stages.small(self._op, shapes[0], self._rng)
                Draws(self._op, small, split=self._split, device=self._device, seed=secrets.randbits(63)).draw(1.0, 0, ())

    def _time_for_another(self, done: int) -> bool:
        """Whether a case will end within the budget, if it takes as long as the `done` cases before it did."""
        now = time.monotonic()
        return now + _MARGIN * (now - self._began) / done < self._limits.deadline

    def _todo(self) -> list[tuple[Case, Any]]:
        """The cases of the stage with their parameters."""
        todo: list[tuple[Case, Any]] = []
        known = {case.key: self._op.parse_params(case.params) for case in self._task.cases}
        sizes = {key: self._op.minimum_bytes(params) for key, params in known.items()}
        cases = stages.chosen(self._task.cases, self._task.stage, self._rng, lambda case: sizes[case.key], self._device.type)
        self._drawn = len(cases)
        for case in cases:
            params = stages.cut(self._op, known[case.key], self._task.stage, self._device.type)
            if params != known[case.key]:
                self._whole[case.key] = known[case.key]
                most = f"{stages.QUICK_BYTES[self._device.type] >> 20} MiB"
                self._remarks.append(f"{case.name}: judged at {self._op.shape(params)}, since a CPU takes too long on more than {most}.")
            todo.append((case, params))
            if self._task.stage is Stage.FINAL:
                unseen = stages.unseen(self._op, params, self._rng)
                if unseen != params:
                    todo.append((msgspec.structs.replace(case, name=f"{case.name} (unseen shape)", weight=0.0), unseen))
        return todo

    def _case(self, case: Case, params: Any, *, share: float) -> CaseEvaluation:
        """Judge one case; what the candidate does wrong is the result."""
        began = time.monotonic()
        left = max(0.0, (self._limits.deadline if self._interpreted else self._planned) - began)
        until, compared_until = began + share * left, began + stages.COMPARED_SHARE * share * left
        shape = self._op.shape(params)
        judge: CaseJudge | None = None
        try:
            self._limits.require_time()
            opened, compared = self._open(params)
            if opened.declined is not None:
                return CaseEvaluation(
                    case=case.name, suite=case.suite, shape=shape, status=EvaluationStatus.UNSUPPORTED, reason=opened.declined
                )
            self._report(Step(text="compare"))
            own = compared == params and not self._interpreted
            if own and self._small_left:
                self._small_left -= 1
                self._compare_small(params, stages.SMALL_CALLS)
            judge = self._judge_of(opened, compared)
            judge.check(self._calls_due())
            judge.compare(self._calls_due(), compared_until if own else float("inf"))
            if own and (missing := self._calls_due() - judge.found.compared) > 0:
                if self._compare_small(params, missing):
                    judge.found.compared += missing
                    judge.found.calls += missing
                else:  # a candidate that declines small shapes is compared no less often
                    judge.compare(self._calls_due())
            self._compare_other_layout(judge, compared)
            if self._interpreted or self._task.stage is Stage.CHECK or case.key in self._whole:
                self._compare_longer(self._whole.get(case.key, params), compared)
            if reason := late_work(judge.found.late_shares):
                raise CandidateError(EvaluationStatus.HACKED, reason)
            timing = self._timing(judge, params, until) if not self._interpreted and self._task.stage is not Stage.CHECK else {}
            status, reason = timing.pop("status", EvaluationStatus.PASSED), timing.pop("reason", "")
        except CandidateError as error:
            status, reason, timing = error.status, error.reason, {}
        found = judge.found if judge is not None else None
        return CaseEvaluation(
            case=case.name,
            suite=case.suite,
            shape=shape,
            status=status,
            reason=reason,
            accuracy=found.accuracy if found is not None else None,
            calls_compared=found.compared if found is not None else 0,
            calls=found.calls if found is not None else 0,
            **timing,
        )

    def _compare_small(self, params: Any, calls: int) -> bool:
        """Compare `calls` of the case at a small shape with an odd number of tokens, then open the case again; whether it was possible.

        Raises:
            CandidateError: the candidate is wrong there, or failed.
        """
        small = stages.small(self._op, params, self._rng)
        if small == params:
            return False
        opened = self._asked(small)
        if opened.declined is None:
            try:
                self._judge_of(opened, small).compare(calls)
            except CandidateError as error:
                raise CandidateError(error.status, f"at {self._op.shape(small)}: {error.reason}") from error
        self._asked(params)
        return opened.declined is None

    def _others(self, judged: Sequence[Case], left_out: Sequence[Case] = ()) -> list[CaseEvaluation]:
        """Compare calls of further cases at a small shape: all due ones of those that were left out, and a few of those that were not
        drawn, as many as the stage has time for.  A kernel may be wrong for one dtype or layout alone.  Returns the case that failed, if
        any."""
        allowed = max(0.0, stages.OTHERS_S[self._device.type].get(self._task.stage, 0.0) - self._layouts_s)
        ends = time.monotonic() + min(allowed, stages.OTHERS_SHARE * (self._limits.deadline - time.monotonic()))
        known = {case.key: self._op.parse_params(case.params) for case in self._task.cases}
        kinds = {key: stages.small(self._op, params, random.Random(0)) for key, params in known.items()}
        seen = {kinds[case.key] for case in judged if case.key in kinds}
        others = [case for case in self._rng.sample(self._task.cases, len(self._task.cases)) if case not in left_out]
        compared = 0
        for case in (*left_out, *others):
            due = case in left_out
            # A batch that compiled tells how long the next one may take.
            if self._interpreted or (not due and time.monotonic() + self._limits.longest_s > ends):
                break
            if kinds[case.key] in seen and not due:
                continue
            seen.add(kinds[case.key])
            small = stages.small(self._op, known[case.key], self._rng)
            asked = time.monotonic()
            try:
                opened = self._asked(small)
                if opened.declined is None:
                    self._judge_of(opened, small).compare(self._calls_due() if due else stages.SMALL_CALLS)
                    compared += 1
            except CandidateError as error:
                # A call that the budget ended is no reason to skip the rest: it may be meant to last until then.
                if error.status is EvaluationStatus.UNDECIDED and (self._process.alive or time.monotonic() - asked < HUNG_AFTER_S):
                    break
                reason = f"at {self._op.shape(small)}: {error.reason}"
                shape = self._op.shape(known[case.key])
                return [CaseEvaluation(case=case.name, suite=case.suite, shape=shape, status=error.status, reason=reason)]
        if compared:
            self._remarks.append(f"Compared at small sizes on {compared} of the other cases, too.")
        return []

    def _compare_other_layout(self, judge: CaseJudge, compared: Any) -> None:
        """Compare a few calls with strided tensors where the case's are contiguous, or the reverse, at a small shape.

        A kernel may decline the layout in `supports`; one that raises has declined it late, if it goes on to be right.

        Raises:
            CandidateError: the candidate is wrong there, or failed.
        """
        began = time.monotonic()
        small = compared if self._interpreted else stages.small(self._op, two_samples(compared), self._rng)
        if self._layouts_left == 0 or (other := other_layout(self._op, small, self._device)) is None:
            return
        self._layouts_left -= 1
        opened = self._asked(other)
        raised = ""
        if opened.declined is None:
            try:
                self._judge_of(opened, other).compare(stages.LAYOUT_CALLS)
            except CandidateError as error:
                raised = f"at {self._op.shape(other)}: {error.reason}"
                if error.status not in _MAY_DECLINE or not self._process.alive:
                    raise CandidateError(error.status, raised) from error
        self._asked(compared)
        if raised:
            judge.compare(judge.found.compared + 1)
            self._remarks.append(f"It fails {raised}. A kernel declines such a case in its supports().")
        self._layouts_s += time.monotonic() - began

    def _compare_longer(self, params: Any, compared: Any) -> None:
        """Compare a few calls on more tokens than the others had, up to the case's own: a kernel may be wrong beyond its first block.

        Raises:
            CandidateError: the candidate is wrong there, or failed.
        """
        if self._interpreted:
            longer = self._op.shrink(params, int(INTERPRETER_ROWS * _INTERPRETED_S / max(1e-3, self._limits.longest_s)))
        else:
            longer = stages.longer(self._op, params, self._task.stage, self._device.type)
        if self._longer_left == 0 or self._op.minimum_bytes(longer) <= self._op.minimum_bytes(compared):
            return
        self._longer_left -= 1
        opened = self._asked(longer)
        if opened.declined is None:
            try:
                self._judge_of(opened, longer).compare(_LONGER_CALLS)
            except CandidateError as error:
                raise CandidateError(error.status, f"at {self._op.shape(longer)}: {error.reason}") from error
        self._asked(compared)

    def _calls_due(self) -> int:
        """Compared calls of a case, so that those of the stage find one wrong call in fifty."""
        return -(-stages.COMPARED_CALLS // max(1, min(self._drawn, stages.CHECK_CASES)))

    def _timing(self, judge: CaseJudge, params: Any, until: float) -> dict[str, Any]:
        """Time the case beside the baseline; fields of the case's evaluation."""
        self._report(Step(text="time"))
        with self._phases.timed(BASELINE):
            baseline, _ = self._judge.baseline_process(self._task)
        question = OpenCase(token="", params=msgspec.to_builtins(params))
        with self._phases.timed(SPLIT_CALLS):
            baseline.ask(question, CaseOpened, doing="supports()", patience=self._limits.first())
            limit_us = baseline.ask(Yardstick(token=""), YardstickDone, doing="the yardstick", patience=self._limits.first())[0].limit_us
        exchange = Exchange(baseline, judge.expected, phases=self._phases, names=(SPLIT_CALLS, SPLIT_CALLS))
        judge.time(exchange, stages.PAIRS[self._task.stage], until)
        return self._judged(judge.found, limit_us)

    def _judged(self, found: CaseJudgement, limit_us: float) -> dict[str, Any]:
        """What the measured batches say of the case: its speedup, or why there is none."""
        for timed in found.timed:
            if reason := late_host(timed):
                return {"status": EvaluationStatus.UNFIT, "reason": reason}
            if reason := untimed_batches(timed.untimed):
                return {"status": EvaluationStatus.SUSPICIOUS, "reason": reason}
        if reason := late_work(found.late_shares):
            return {"status": EvaluationStatus.HACKED, "reason": reason}
        kind = self._device.type
        for timed in found.timed:
            if reason := contradiction(timed, limit_us, kind):
                return {"status": EvaluationStatus.SUSPICIOUS, "reason": reason}
        estimates = [self._estimates(timed) for timed in found.timed]
        slowest = min(estimates, key=lambda one: float(one["speedup"].value))
        if any(one["speedup"].low > 1.1 * slowest["speedup"].high for one in estimates):
            alone, together = (one["time_us"].value for one in estimates)
            self._remarks.append(
                f"A call took {alone:.1f} us alone in its batch, and {together:.1f} us beside others; the lower of the two speedups counts."
            )
        known: dict[str, Any] = {"limit_us": limit_us, "sol": limit_us / slowest["time_us"].value} if kind == "cuda" else {}
        return known | slowest

    def _estimates(self, timed: TimedBatches) -> dict[str, Estimate]:
        """Times and speedup by the batches of one kind."""
        added = unclaimed_us(timed.outside)
        own, other = [[time + added] for time in believed_us(timed.pairs)], [[time] for time in credited_us(timed.alone_us, timed.pairs)]
        time_us = time_estimate(own, 0.0)
        if added > 0.1 * time_us.value:
            self._remarks.append(f"{added:.0f} us of CPU time a call, which the candidate's clock left out, are part of its time.")
        speedup, unexcluded = ratio_estimate(other, own, 0.0), unexcluded_us(timed.outside)
        return {
            "time_us": msgspec.structs.replace(time_us, high=time_us.high + unexcluded),
            "baseline_us": time_estimate(other, 0.0),
            "speedup": msgspec.structs.replace(speedup, low=speedup.low * time_us.value / (time_us.value + unexcluded)),
        }


def _weighted(cases: Sequence[CaseEvaluation], weights: Sequence[float]) -> Estimate | None:
    """Sum of weight x baseline over sum of weight x candidate, its ends those of the cases' speedups at the candidate's times."""
    timed = [(case, weight) for case, weight in zip(cases, weights, strict=True) if case.speedup is not None and weight > 0]
    if not timed:
        return None

    def ratio(end: Callable[[Estimate], float]) -> float:
        times = [(case.time_us.value if case.time_us else 0.0, end(case.speedup), weight) for case, weight in timed if case.speedup]
        return sum(weight * own * speedup for own, speedup, weight in times) / sum(weight * own for own, _, weight in times)

    return Estimate(ratio(lambda one: one.value), ratio(lambda one: one.low), ratio(lambda one: one.high))
