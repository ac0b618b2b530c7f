"""The work on one case of a run.

Its kernels go through the accuracy gate.  Those that pass are timed against one another, in as many processes as the plan asks for.  A
kernel that fails while it is timed is out, and the others go on without it; without their baseline they are not timed at all.  A case
whose verdict is in doubt when the run is over is timed again, in fresh processes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import msgspec

from ...device import EnvironmentMonitor
from ...schema import CaseSummary, Result, SamplingPlan, Status
from ...timing.placement import CONTROL
from ..case_kernels import CaseKernels
from ..phases import CHECK, PhaseTimer
from ..reporter import Reporter
from ..timing_remarks import common_failure, own_failure, remark_on_timer, remarks_on_timing
from ..workers.checking import check_all
from ..workers.interference import measure_with_retry
from ..workers.pool import WorkerPool
from ..workers.process import WorkerProcess
from ..workers.protocol import Failure, Measured, MeasureTask, Progress
from .precision import begin_ahead, imprecise, measure_in_processes
from .remeasure import look_again
from .summarise import CaseFigures, untimed_summary


class MeasuredCase(msgspec.Struct, kw_only=True):
    """What is known of a case; it grows while the case is being measured."""

    results: list[Result] = []
    """Those that are final, in the order in which they became so."""
    summary: CaseSummary | None = None
    """The case itself; None until its kernels are timed, or known not to be."""
    measured: list[Measured] = []
    """The answer of each process; empty where nothing was timed."""
    warnings: list[str] = []


class CaseMeasurement:
    """Measures one case; `found` may be taken at any time, also after an interruption."""

    def __init__(
        self,
        entry: CaseKernels,
        pool: WorkerPool,
        *,
        plan: SamplingPlan,
        timer: str,
        monitor: EnvironmentMonitor,
        phases: PhaseTimer,
        reporter: Reporter,
    ) -> None:
        """`monitor` watches while `measure` is called."""
        self.found = MeasuredCase()
        self._entry, self._pool, self._plan, self._timer = entry, pool, plan, timer
        self._monitor, self._ledger, self._reporter = monitor, phases, reporter

    def measure(self, seconds: float | None) -> None:
        """Check every kernel, and time those that are right against their baseline.

        Args:
            seconds: what the case may take; None for no limit.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        began = time.monotonic()
        self._add(self._entry.declined)
        begin_ahead(self._pool, self._plan, seconds)
        with self._ledger.timed(CHECK):
            checked = check_all(
                self._pool.workers,
                self._entry,
                on_progress=lambda progress: self._show(f"check {progress.kernel}", progress),
                on_checked=lambda kernel, seconds: self._ledger.add({}, {kernel: seconds}),
            )
        ready = [result for result in checked if result.status is Status.CHECKED and not result.reason]
        self._add([result for result in checked if result not in ready])
        if self._entry.baseline_id not in {result.kernel for result in ready}:
            self._give_up(ready)
            return
        self._time(ready, _left(seconds, began))

    def measure_again(self, known: Sequence[Result], in_doubt: str) -> None:
        """Time once more what was timed, in fresh processes.

        Figures are then theirs alone: those of the first process were chosen for what they say.  A kernel that fails now has failed, and
        the others keep the figures that they have; of the case itself nothing is then found.  Nor is it where the fresh samples are not
        cold: times without that label are compared with none, so that a regression would end as no verdict at all.

        Args:
            known: every result of the case.
            in_doubt: what asks for it, for the record.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        timed = [result for result in known if result.status is Status.MEASURED]
        task = self._task(timed, None)
        replies = look_again(task, self._pool, ask=self._ask)
        if isinstance(replies, Failure):
            culprit = self._culprit(replies)
            self._keep_first(common_failure(replies), [_failed(one, replies) if one.kernel == culprit else one for one in known])
            return
        figures = CaseFigures(self._entry, replies, self._plan)
        summary = figures.summary()
        if summary.not_cold:
            self._keep_first(f"its samples were not cold: {summary.not_cold}", known)
            return
        self._note_timing(task, replies)
        self.found.summary = msgspec.structs.replace(summary, in_doubt=in_doubt)
        again = {result.kernel: msgspec.structs.replace(result, measurement=figures.measurement(result.kernel)) for result in timed}
        self._add([again.get(result.kernel, result) for result in known])

    def _keep_first(self, why: str, results: Sequence[Result]) -> None:
        """The case could not be measured again; `results` are then those of the case."""
        key = self._entry.case.key
        self._warn(f"case {key}: what is in doubt of it could not be measured again, and figures are those of one process: {why}")
        self._add(results)

    def _culprit(self, failure: Failure) -> str:
        """The kernel that the failure is due to; the control arm is the baseline's second copy."""
        return self._entry.baseline_id if failure.kernel == CONTROL else failure.kernel

    def _task(self, ready: Sequence[Result], seconds: float | None) -> MeasureTask:
        kernels = tuple(result.kernel for result in ready)
        return MeasureTask(
            case=self._entry.case,
            kernels=kernels,
            baseline=self._entry.baseline_id,
            plan=self._plan,
            timer=self._timer,
            seed=random.SystemRandom().randrange(2**31),
            seconds=seconds,
            # What a CPU runs for an operator depends on more than torch's version: its code is not known.
            digested=kernels if self._pool.workers.device.kind == "cuda" else (),
        )

    def _time(self, ready: list[Result], seconds: float | None) -> None:
        """Time `ready`, the baseline among them, and note their figures."""
        began = time.monotonic()
        task = self._task(ready, seconds)

        def timed(replies: Sequence[Measured]) -> list[Result]:
            figures = CaseFigures(self._entry, replies, self._plan)
            return [figures.measured(result) for result in ready]

        replies = measure_in_processes(
            task, self._pool, ask=self._ask, enough=lambda replies: not imprecise(timed(replies), self._plan), warn=self._warn
        )
        if isinstance(replies, Failure):
            self._time_without(replies, ready, _left(seconds, began))
            return
        self._note_timing(task, replies)
        self.found.summary = CaseFigures(self._entry, replies, self._plan).summary()
        measured = timed(replies)
        for text in imprecise(measured, self._plan):
            self._warn(f"case {self._entry.case.key}: {text}")
        self._add(measured)

    def _ask(self, task: MeasureTask, worker: WorkerProcess, doing: str) -> Measured | Failure:
        return measure_with_retry(
            task,
            worker,
            self._monitor,
            self._pool.workers.device,
            on_progress=lambda progress: self._show(doing, progress),
            warn=self._warn,
        )

    def _note_timing(self, task: MeasureTask, replies: list[Measured]) -> None:
        """Keep what the processes measured, and what it took."""
        self.found.measured = replies
        if remark := remark_on_timer(replies[0]):
            self.found.warnings.append(remark)
        for reply in replies:
            self._ledger.add(reply.phases_s, {arm: reply.first_call_s.get(arm, 0.0) for arm in task.kernels})
            if reply.cut_short:
                self._warn(f"case {task.case.key}: the budget ended before all {self._plan.replicates} replicates")
        for remark in remarks_on_timing(task.case, replies):
            self._warn(remark)

    def _time_without(self, failure: Failure, ready: list[Result], seconds: float | None) -> None:
        """A kernel failed while it was timed: it is out, the others are timed without it, unless it was their baseline."""
        kernel = self._culprit(failure)
        culprit = next((result for result in ready if result.kernel == kernel), None)
        if culprit is None:
            self._add([msgspec.structs.replace(result, status=failure.status, reason=common_failure(failure)) for result in ready])
            self.found.summary = untimed_summary(self._entry)
            return
        self._add([_failed(culprit, failure)])
        others = [result for result in ready if result is not culprit]
        if kernel == self._entry.baseline_id:
            self._give_up(others)
        else:
            self._time(others, seconds)

    def _give_up(self, ready: Sequence[Result]) -> None:
        """Without a baseline there is nothing to pair with."""
        reason = (
            f"its baseline {self._entry.baseline_id} failed"
            if self._entry.baseline is not None
            else f"no baseline of {self._entry.op.name} runs on {self._pool.workers.device.kind}"
        )
        self.found.summary = untimed_summary(self._entry)
        self._add([msgspec.structs.replace(result, status=Status.NOT_MEASURED, reason=f"not timed: {reason}") for result in ready])

    def _add(self, results: Sequence[Result]) -> None:
        self.found.results += results
        for result in results:
            self._reporter.result(result)

    def _warn(self, text: str) -> None:
        self.found.warnings.append(text)
        self._reporter.note(text)

    def _show(self, what: str, progress: Progress) -> None:
        warming_up = progress.kernel and what.startswith("measure")
        self._reporter.step(f"{what}: {progress.text}" if warming_up else what, progress.done, progress.total)


def _failed(result: Result, failure: Failure) -> Result:
    """What becomes of the result of a kernel that failed while it was timed, whatever an earlier process had measured."""
    return msgspec.structs.replace(result, status=failure.status, reason=own_failure(failure), measurement=None, code=None)


def _left(seconds: float | None, began: float) -> float | None:
    """What is left of a case's share of the budget, `began` being when it started to be used."""
    return None if seconds is None else seconds - (time.monotonic() - began)
