"""The work on one case of a run.

Its kernels go through the accuracy gate.  Kernels that pass are timed against one another, in as many processes as the plan asks for.  A
kernel that fails while it is timed is out, and the others go on without it; without their baseline they are not timed at all.  A suspect
is timed again, in fresh processes, when every case is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from ...schema import OUTSIDE_CONTRACT, Accuracy, CaseSummary, Result, Role, Status
from ...timing.placement import CONTROL
from ..case_kernels import CaseKernels
from ..context import CHECK, MeasuringContext
from ..workers.blame import search
from ..workers.checking import check_all
from ..workers.protocol import Failure, Measured, Progress, TimeTask
from ..workers.remarks import common_failure, own_failure, remark_on_timer, remarks_on_timing, said_by_arm
from .looks import confirming_plan, timed_again
from .precision import begin_ahead, imprecise, measure_in_fresh, measure_in_processes
from .summarise import CaseFigures, untimed_summary


class _CaseWork:
    """Base of a first measurement and a remeasurement; the findings so far may be read at any time."""

    def __init__(self, unit: CaseKernels, context: MeasuringContext) -> None:
        self.results: list[Result] = []
        """Final results, in the order in which they became final."""
        self.summary: CaseSummary | None = None
        """The case itself; None until its kernels are timed, or known not to be."""
        self.replies: list[Measured] = []
        """The answer of each process; empty if nothing was timed."""
        self._unit, self._context = unit, context
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the work began."""
        return time.monotonic() - self._began

    def _culprit(self, failure: Failure) -> str:
        """The kernel that the failure is due to; the control arm is the baseline's second copy."""
        return self._unit.baseline_id if failure.kernel == CONTROL else failure.kernel

    def _task(self, ready: Sequence[Result], timer: str, seconds: float | None) -> TimeTask:
        kernels = tuple(result.kernel for result in ready)
        return TimeTask(
            case=self._unit.case,
            kernels=kernels,
            baseline=self._unit.baseline_id,
            plan=self._context.plan,
            timer=timer,
            seed=random.SystemRandom().randrange(2**31),
            seconds=seconds,
            # What a CPU runs for an operator depends on more than torch's version: its code is not known.
            digested=kernels if self._context.device.kind == "cuda" else (),
        )

    def _figures(self, replies: Sequence[Measured]) -> CaseFigures:
        return CaseFigures(self._unit, replies, self._context.plan, self._context.environment_at_start.memory_gb_per_s)

    def _note_timing(self, task: TimeTask, replies: list[Measured]) -> None:
        """Keep the measurements of the processes, and their time."""
        context = self._context
        self.replies = replies
        if remark := remark_on_timer(replies[0]):
            context.warnings.append(remark)
        for reply in replies:
            context.phases.add(reply.phases_s, {arm: reply.first_call_s.get(arm, 0.0) for arm in task.kernels})
            if reply.cut_short:
                context.warn(f"case {task.case.key}: the budget ended before all {context.plan.replicates} replicates")
        for remark in remarks_on_timing(task.case, replies):
            context.warn(remark)

    def _add(self, results: Sequence[Result]) -> None:
        self.results += results
        for result in results:
            self._context.reporter.result(result)


class CaseMeasurement(_CaseWork):
    """Checks and times one case for the first time."""

    def __init__(
        self,
        unit: CaseKernels,
        context: MeasuringContext,
        passed: Mapping[str, Accuracy] | None = None,
        wrong: Mapping[str, Accuracy] | None = None,
        expected_s: float | None = None,
    ) -> None:
        """
        Args:
            passed: by kernel, the checks that were made ahead.
            wrong: those of kernels that were wrong; they are checked again, on the same draws.
            expected_s: seconds that the whole work is expected to take; None where nothing is known.
        """
        super().__init__(unit, context)
        self._passed, self._wrong, self._expected_s = passed or {}, wrong or {}, expected_s
        self._whole = True
        """Whether there is time for every process, so that they begin before they are needed."""

    def measure(self, seconds: float | None) -> None:
        """Check every kernel, and time the correct ones against their baseline.

        Args:
            seconds: the time of the case; None for no limit.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        began, context = time.monotonic(), self._context
        self._add(self._unit.declined)
        self._whole = seconds is None or (self._expected_s is not None and seconds >= self._expected_s)
        if self._whole:
            begin_ahead(context)
        context.start_first()
        with context.phases.timed(CHECK):
            checked = check_all(
                context.pool,
                self._unit,
                seed=next((accuracy.seed for accuracy in self._wrong.values()), None),
                known=self._passed,
                on_progress=self._show_check,
                on_checked=lambda kernel, seconds: context.phases.add({}, {kernel: seconds}),
                on_remark=context.warn,
            )
        for result in checked:
            if result.status is Status.CHECKED and (before := self._wrong.get(result.kernel)) is not None:
                context.warn(f"case {self._unit.case.key}: {result.kernel} was wrong, and then right on the same draws: {before.reason}")
        checked = [_for_information(result) for result in checked]
        ready = [result for result in checked if result.status is Status.CHECKED and not result.reason]
        self._add([result for result in checked if result not in ready])
        if self._unit.baseline_id not in {result.kernel for result in ready}:
            self._give_up(ready)
            return
        self._time(ready, _left(seconds, began))

    def _show_check(self, progress: Progress) -> None:
        self._context.reporter.step(f"check {progress.kernel}", progress.done, progress.total)

    def _time(self, ready: list[Result], seconds: float | None) -> None:
        """Time `ready`, the baseline among them, and note their figures."""
        began, context = time.monotonic(), self._context
        task = self._task(ready, context.pool.timer, seconds)

        def timed(replies: Sequence[Measured]) -> list[Result]:
            figures = self._figures(replies)
            return [figures.measured(result) for result in ready]

        replies = measure_in_processes(task, context, enough=lambda replies: not imprecise(timed(replies), context.plan), ahead=self._whole)
        if isinstance(replies, Failure):
            self._time_without(replies, ready, _left(seconds, began))
            return
        self._note_timing(task, replies)
        wrong = self._withdraw(ready)
        if self._unit.baseline_id in wrong:
            self._give_up([result for result in ready if result.kernel not in wrong])
            return
        ready = [result for result in ready if result.kernel not in wrong]
        self.summary = self._figures(replies).summary()
        measured = timed(replies)
        for text in imprecise(measured, context.plan):
            context.warn(f"case {self._unit.case.key}: {text}")
        self._add(measured)

    def _withdraw(self, timed: Sequence[Result]) -> set[str]:
        """Add the kernels whose timed outputs were wrong, and drop their times.  Returns their ids."""
        wrong = wrong_when_timed(self._unit.baseline_id, self.replies, timed)
        self._add([withdrawn(result, wrong[result.kernel]) for result in timed if result.kernel in wrong])
        dropped = {*wrong, *([CONTROL] if self._unit.baseline_id in wrong else [])}
        self.replies = [
            msgspec.structs.replace(reply, samples=[sample for sample in reply.samples if sample.arm not in dropped])
            for reply in self.replies
        ]
        return set(wrong)

    def _time_without(self, failure: Failure, ready: list[Result], seconds: float | None) -> None:
        """A kernel failed while it was timed: it is out, the others are timed without it, unless it was their baseline."""
        kernel = self._culprit(failure)
        culprit = next((result for result in ready if result.kernel == kernel), None)
        if culprit is None:
            self._add([msgspec.structs.replace(result, status=failure.status, reason=common_failure(failure)) for result in ready])
            self.summary = untimed_summary(self._unit)
            return
        by_itself, disturber = self._disturber(failure, kernel, ready, seconds)
        if not by_itself and disturber is None:
            reason = f"{failure.reason} (only while all kernels of its case are timed in one process; no other one is to blame alone)"
            failure = msgspec.structs.replace(failure, reason=reason)
        if disturber is not None:
            reason = f"it spoils its process for others: with it {kernel} fails, and not without it: {failure.reason}"
            failure = Failure(status=Status.CRASHED, reason=reason, kernel=disturber.kernel, tampered=True)
            context = self._context
            context.pool.failures.note(disturber.kernel, self._unit.case.key, failure)
            context.pool.failures.absolve(kernel, self._unit.case.key)
            culprit, kernel = disturber, disturber.kernel
        self._add([_failed(culprit, failure)])
        others = [result for result in ready if result is not culprit]
        if kernel == self._unit.baseline_id:
            self._give_up(others)
        else:
            self._time(others, seconds)

    def _disturber(self, failure: Failure, kernel: str, ready: Sequence[Result], seconds: float | None) -> tuple[bool, Result | None]:
        """Whether `kernel` fails by itself, as one that hangs is taken to; else the one that makes it fail in its process, if one does."""
        others = {result.kernel: result for result in ready if result.kernel not in (kernel, self._unit.baseline_id)}
        if not others or failure.tampered or failure.status is Status.HUNG:
            return True, None
        context = self._context
        shortest = msgspec.structs.replace(context.plan, replicates=min(2, context.plan.replicates))

        def fails_after(suspects: Sequence[str]) -> bool:
            context.pool.native.renew()
            together = [result for result in ready if result.kernel in (kernel, self._unit.baseline_id, *suspects)]
            task = msgspec.structs.replace(self._task(together, context.pool.timer, seconds), plan=shortest)
            return isinstance(context.ask(task, context.pool.native), Failure)

        return (True, None) if fails_after(()) else (False, others.get(search(list(others), fails_after)))

    def _give_up(self, ready: Sequence[Result]) -> None:
        """Without a baseline there is nothing to pair with."""
        reason = (
            f"its baseline {self._unit.baseline_id} failed"
            if self._unit.baseline is not None
            else f"no baseline of {self._unit.op.name} runs on {self._context.device.kind}"
        )
        self.summary = untimed_summary(self._unit)
        self._add([msgspec.structs.replace(result, status=Status.NOT_MEASURED, reason=f"not timed: {reason}") for result in ready])


class Remeasurement(_CaseWork):
    """Remeasures the suspects of a case in fresh processes, beside its baseline kernel, and on a CPU beside all of its kernels.

    Their figures, and those of the baseline kernel, then come from the fresh processes alone, because the first figures were selected for
    being suspect. Kernels that are no suspects keep theirs. A kernel that fails now has failed; the others keep their figures, and the
    summary stays None. The summary also stays None if the fresh samples are not cold: they could not be compared, and a regression would
    become incomparable.
    """

    def __init__(
        self,
        unit: CaseKernels,
        context: MeasuringContext,
        known: Sequence[Result],
        suspicion: str,
        kernels: Collection[str] = (),
        *,
        first: int = 1,
        before: Sequence[Measured] = (),
    ) -> None:
        """
        Args:
            known: every result of the case.
            suspicion: why it is a suspect, for the record.
            kernels: the suspects; all of the case's where empty.
            first: processes that measured it at first.
            before: answers of the fresh processes that remeasured it already.
        """
        super().__init__(unit, context)
        self._known, self._suspicion, self._first = known, suspicion, first
        self._again = {*kernels, unit.baseline_id} if kernels else {result.kernel for result in known}
        """The kernels that get new figures."""
        self._before = list(before)

    def measure(self, processes: int, looks: int = 2) -> None:
        """Time the suspects until so many fresh processes have.

        Args:
            looks: at which the case may pass, the first measurement's included.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        timed = timed_again(self._known, self._again, self._context.device.kind)
        # With the timer of the first measurement: times of two timers are never compared.
        task = self._task(timed, self._context.timer, None)
        task = msgspec.structs.replace(task, plan=confirming_plan(task.plan))
        replies = measure_in_fresh(task, self._context, len(self._before), processes, first=self._first)
        if isinstance(replies, Failure):
            culprit = self._culprit(replies)
            self._keep_known(common_failure(replies), [_failed(one, replies) if one.kernel == culprit else one for one in self._known])
            return
        if wrong := wrong_when_timed(self._unit.baseline_id, replies, timed):
            why = f"{', '.join(wrong)} gave wrong outputs"
            self._keep_known(why, [withdrawn(one, wrong[one.kernel]) if one.kernel in wrong else one for one in self._known])
            return
        replies = self._without_company(replies, timed)
        figures = self._figures([*self._before, *replies])
        summary = figures.summary()
        if summary.not_cold:
            self._keep_known(f"its samples were not cold: {summary.not_cold}", self._known)
            return
        self._note_timing(task, replies)
        self.summary = msgspec.structs.replace(summary, suspicion=self._suspicion)
        again = {
            result.kernel: msgspec.structs.replace(
                result,
                measurement=msgspec.structs.replace(figures.of(result), looks=looks),
                suspicious=figures.suspicious(result.kernel),
            )
            for result in timed
            if result.kernel in self._again
        }
        self._add([again.get(result.kernel, result) for result in self._known])

    def _without_company(self, replies: Sequence[Measured], timed: Sequence[Result]) -> list[Measured]:
        """The answers without the samples of kernels that keep their figures."""
        company = {result.kernel for result in timed} - self._again
        return [
            msgspec.structs.replace(reply, samples=[sample for sample in reply.samples if sample.arm not in company]) for reply in replies
        ]

    def _keep_known(self, why: str, results: Sequence[Result]) -> None:
        """Keep the figures that there are; `results` are then those of the case."""
        self._context.warn(f"case {self._unit.case.key}: the suspect could not be remeasured, and keeps the figures that it had: {why}")
        self._add(results)


def _failed(result: Result, failure: Failure) -> Result:
    """The result of a kernel that failed while it was timed; it replaces earlier measurements."""
    return msgspec.structs.replace(result, status=failure.status, reason=own_failure(failure), measurement=None, code=None)


def _for_information(result: Result) -> Result:
    """The result of a check; a peer whose errors alone leave the contract, and stay as small as other projects tolerate, is timed too."""
    accuracy = result.accuracy
    wrong_by_errors = result.status is Status.WRONG and accuracy is not None and accuracy.errors_only and accuracy.within_loose_tolerance
    if result.role is not Role.PEER or result.covers or not wrong_by_errors or accuracy is None:
        return result
    return msgspec.structs.replace(result, status=Status.CHECKED, reason="", covers=f"{OUTSIDE_CONTRACT}: {accuracy.reason}")


def wrong_when_timed(baseline: str, replies: Sequence[Measured], timed: Sequence[Result]) -> dict[str, str]:
    """By kernel, why outputs of its timed calls were wrong in a process; the control arm is the baseline's second copy.  The outputs of a
    peer outside the contract are known to be."""
    known = {result.kernel for result in timed if result.outside_contract}
    found = {arm: why for arm, why in said_by_arm([reply.wrong for reply in replies]).items() if arm not in known}
    control = found.pop(CONTROL, None)
    return found if control is None else {baseline: control, **found}


def withdrawn(result: Result, reason: str) -> Result:
    """The result of a kernel whose timed outputs were wrong; it has no time."""
    return msgspec.structs.replace(result, status=Status.WRONG, reason=reason, measurement=None, code=None, suspicious="")


def _left(seconds: float | None, began: float) -> float | None:
    """The rest of a case's share of the budget, which the case has used since `began`."""
    return None if seconds is None else seconds - (time.monotonic() - began)
