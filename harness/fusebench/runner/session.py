"""A run: cases through the accuracy gate and the timer, into one record.

The device is locked and found idle before anything starts, and watched throughout.  A case during which something touched the device
is measured again; if that goes on, the run ends as unfit, keeping what it has.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..device import Device, EnvironmentMonitor, environment_of
from ..errors import DeviceUnfitError
from ..registry import Collection, Kernel
from ..schema import (
    SCHEMA_VERSION,
    CacheState,
    Case,
    CaseSummary,
    ExitCode,
    KernelInfo,
    Result,
    Run,
    Sample,
    SamplingPlan,
    Status,
)
from ..stats.weighted import suite_summaries
from ..timing.placement import CONTROL
from .checking import Workers, check_all
from .contenders import Contenders, contenders, result_for, split_reference
from .messages import Failure, Measured, MeasureTask, Progress
from .precision import Crew, imprecise, measure_in_processes
from .process import WorkerProcess
from .repeats import Outcome, Repeats
from .reporter import Reporter
from .resuming import Resumed
from .spending import CHECK, Ledger
from .summarise import CaseFigures
from .undisturbed import measure_undisturbed


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to run."""

    plan: SamplingPlan
    timer: str = "auto"
    budget_s: float | None = None
    kernel: str | None = None
    command: str = ""
    selected: tuple[str, ...] | None = None
    """Names of the suites that were asked for."""
    op: str | None = None
    """The op that was asked for, for the record: the cases that are run have been chosen by it."""
    case: str | None = None
    """Glob of the cases that were asked for, likewise."""
    resumed: Resumed | None = None
    """A stopped run to go on with."""


def default_plan(device_kind: str, cache: CacheState = CacheState.COLD) -> SamplingPlan:
    """Replicates and rounds that a device gets unless told otherwise.

    On a GPU the placement is the unit of replication: between placements the ratio of a kernel to itself scatters with a standard
    deviation of 0.4 to 1 % on an H200, so twelve of them bring the interval to a few tenths of a percent.  A CPU has no such budget.
    """
    if device_kind == "cuda":
        return SamplingPlan(replicates=12, rounds=20, cache=cache, trim=0.1)
    return SamplingPlan(replicates=4, rounds=5, cache=cache, trim=0.2)


class Session:
    """Collects what a run finds; `record` may be taken at any time, also after an interruption."""

    def __init__(self, collection: Collection, device: Device, project_root: Path, options: Options, reporter: Reporter) -> None:
        self.collection = collection
        self.device = device
        self.options = options
        self.reporter = reporter
        self._project_root = project_root
        self.samples: list[Sample] = []
        self._results: list[Result] = []
        self._cases: list[CaseSummary] = []
        self._warnings: list[str] = []
        self._timer = options.timer
        self._timer_fallback = ""
        self._warm_up: dict[str, Any] = {}
        self._exit_code = ExitCode.PASS
        self._created = datetime.now(UTC)
        self._environment = environment_of(device, project_root)
        self._monitor = EnvironmentMonitor(device)
        self._repeats = Repeats()
        self._resumed = options.resumed
        self._ledger = Ledger(self._resumed.run.spending if self._resumed is not None else None)
        self._complete = False
        self._skipped = False

    def run(self, cases: Sequence[Case], workers: Workers) -> None:
        """Check and measure every case, except those that the run that is gone on with has finished.

        Raises:
            UsageError: the run to go on with was made elsewhere, of other sources, or in another way.
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        self._note_problems(cases)
        if self._resumed is not None:
            self._resumed.require_same(self._environment, self.options.plan, self.options.timer)
        started = time.monotonic()
        self.reporter.begin(len(cases))
        try:
            with self._monitor, Crew(workers, self._ledger) as crew:
                for number, case in enumerate(cases):
                    entry = contenders(self.collection, case, self.device.kind, self.options.kernel)
                    split_reference(self.collection, entry.op)
                    self.reporter.case(number + 1, len(cases), case, entry.shape)
                    self._take(entry, crew, self._seconds_for(started, len(cases) - number))
            self._complete = not self._skipped
        finally:
            self.reporter.end()

    def record(self) -> Run:
        """The run as it stands."""
        state = {**self._environment.state, "during": self._monitor.summary(), "warm_up": self._warm_up}
        kernels = {result.kernel for result in self._results}
        return Run(
            schema_version=SCHEMA_VERSION,
            id=secrets.token_hex(4),
            created=self._created.isoformat(timespec="seconds"),
            command=self.options.command,
            timer=self._timer,
            timer_fallback=self._timer_fallback,
            plan=self.options.plan,
            environment=msgspec.structs.replace(self._environment, state=state),
            selected=self.options.selected,
            selected_op=self.options.op,
            selected_cases=self.options.case,
            selected_kernels=self.options.kernel,
            suites=suite_summaries(self._cases, self._results),
            cases=list(self._cases),
            kernels=[self._info(kernel) for key, kernel in self.collection.kernels.items() if key in kernels],
            results=list(self._results),
            spending=self._ledger.spending(),
            resumed_from=[*self._resumed.run.resumed_from, self._resumed.run.id] if self._resumed is not None else [],
            warnings=list(dict.fromkeys(self._warnings)),
            complete=self._complete,
            exit_code=self._exit_code,
        )

    def _info(self, kernel: Kernel) -> KernelInfo:
        """The kernel's declaration, its file named from the project's root: a record is read on other machines."""
        file = Path(kernel.file)
        shown = file.relative_to(self._project_root) if file.is_relative_to(self._project_root) else file
        return msgspec.structs.replace(kernel.info, file=shown.as_posix())

    def warn(self, text: str) -> None:
        """Keep a warning for the record and say it now."""
        self._warnings.append(text)
        self.reporter.note(text)

    def _note_problems(self, cases: Sequence[Case]) -> None:
        """A kernel file that cannot be loaded is a kernel that failed, where its op is being run."""
        ops = {case.op for case in cases}
        for problem in self.collection.problems:
            if problem.op in ops:
                self._warnings.append(f"not loaded: {problem}")
                self._exit_code = ExitCode.KERNEL_FAILED

    def _seconds_for(self, started: float, cases_left: int) -> float | None:
        """This case's even share of what is left of the budget."""
        if self.options.budget_s is None:
            return None
        return (self.options.budget_s - (time.monotonic() - started)) / cases_left

    def _take(self, entry: Contenders, crew: Crew, seconds: float | None) -> None:
        """Measure a case, unless the run that is gone on with did, or an earlier one of this run was the same work."""
        if self._take_over(entry):
            return
        known = self._repeats.outcome_of(entry)
        if known is not None:
            self.reporter.note(f"case {entry.case.key} is the same work as {known.summary.same_as}, whose results it takes")
            self._cases.append(known.summary)
            self._add(known.results)
            return
        first_case, first_result, skipped = len(self._cases), len(self._results), self._skipped
        self._case(entry, crew, seconds)
        if self._skipped == skipped:
            (summary,) = self._cases[first_case:]
            self._repeats.keep(entry, Outcome(summary, tuple(self._results[first_result:])))

    def _take_over(self, entry: Contenders) -> bool:
        """Take the case from the run that is gone on with; False where that has not finished it."""
        kernels = [str(kernel.id) for kernel in entry.runnable] + [result.kernel for result in entry.declined]
        found = self._resumed.finished(entry.case, kernels) if self._resumed is not None else None
        if found is None or self._resumed is None:
            return False
        summary, results, samples = found
        self._timer, self._timer_fallback = self._resumed.run.timer, self._resumed.run.timer_fallback
        self._cases.append(summary)
        self.samples += samples
        self._add(results)
        if not summary.same_as:
            self._repeats.keep(entry, Outcome(summary, tuple(results)))
        return True

    def _case(self, entry: Contenders, crew: Crew, seconds: float | None) -> None:
        began = time.monotonic()
        self._add(entry.declined)
        if seconds is not None and seconds <= 0:
            self._skip(entry, f"the budget of {self.options.budget_s:g} s ended before this case")
            return
        with self._ledger.timed(CHECK):
            checked = check_all(
                crew.workers,
                entry,
                on_progress=lambda progress: self._show(f"check {progress.kernel}", progress),
                on_checked=lambda kernel, seconds: self._ledger.add({}, {kernel: seconds}),
            )
        ready = [result for result in checked if result.status is Status.CHECKED and not result.reason]
        self._add([result for result in checked if result not in ready])
        if entry.baseline_id not in {result.kernel for result in ready}:
            self._give_up(entry, ready)
            return
        self._measure(entry, ready, crew, _left(seconds, began))

    def _measure(self, entry: Contenders, ready: list[Result], crew: Crew, seconds: float | None) -> None:
        began = time.monotonic()
        task = MeasureTask(
            case=entry.case,
            kernels=tuple(result.kernel for result in ready),
            baseline=entry.baseline_id,
            plan=self.options.plan,
            timer=self.options.timer,
            seed=random.SystemRandom().randrange(2**31),
            seconds=seconds,
            # What a CPU runs for an operator depends on more than torch's version: its code is not known.
            digested=tuple(result.kernel for result in ready) if self.device.kind == "cuda" else (),
        )

        def timed(replies: Sequence[Measured]) -> list[Result]:
            figures = CaseFigures(entry, replies, self.options.plan)
            return [figures.measured(result) for result in ready]

        replies = measure_in_processes(
            task, crew, ask=self._ask, enough=lambda replies: not imprecise(timed(replies), self.options.plan), warn=self.warn
        )
        if isinstance(replies, Failure):
            self._measure_without(replies, entry, ready, crew, _left(seconds, began))
            return
        self._note_timing(task, replies)
        self._cases.append(CaseFigures(entry, replies, self.options.plan).summary())
        measured = timed(replies)
        for text in imprecise(measured, self.options.plan):
            self.warn(f"case {entry.case.key}: {text}")
        self._add(measured)

    def _ask(self, task: MeasureTask, worker: WorkerProcess, doing: str) -> Measured | Failure:
        reply = measure_undisturbed(
            task, worker, self._monitor, self.device, on_progress=lambda progress: self._show(doing, progress), warn=self.warn
        )
        if isinstance(reply, Failure) and reply.unfit:
            raise DeviceUnfitError(f"case {task.case.key}: {reply.reason}")
        return reply

    def _note_timing(self, task: MeasureTask, replies: Sequence[Measured]) -> None:
        """Keep the samples of a case, and what they took."""
        key, first = task.case.key, replies[0]
        self._timer, self._timer_fallback = first.timer, first.timer_fallback
        if first.timer_fallback:
            self._warnings.append(f"timer {first.timer} instead of the device's default: {first.timer_fallback}")
        for number, reply in enumerate(replies):
            self._ledger.add(reply.phases_s, {arm: reply.first_call_s.get(arm, 0.0) for arm in task.kernels})
            self._warm_up[f"{key} in process {number + 1}" if number else key] = reply.warm_up
            self.samples += reply.samples
            if reply.cut_short:
                self.warn(f"case {key}: the budget ended before all {self.options.plan.replicates} replicates")
        if retried := sum(reply.retried_replicates for reply in replies):
            self.warn(f"case {key}: {retried} replicates were repeated because the timer lost records")

    def _measure_without(self, failure: Failure, entry: Contenders, ready: list[Result], crew: Crew, seconds: float | None) -> None:
        """A kernel failed while it was timed: it is out, the others are measured without it, unless it was their baseline."""
        kernel = entry.baseline_id if failure.kernel == CONTROL else failure.kernel
        culprit = next((result for result in ready if result.kernel == kernel), None)
        if culprit is None:
            blame = f"while {failure.kernel or 'no kernel'} was being timed: {failure.reason}"
            self._add([msgspec.structs.replace(result, status=failure.status, reason=blame) for result in ready])
            self._cases.append(_bare_summary(entry))
            return
        self._add([msgspec.structs.replace(culprit, status=failure.status, reason=f"while it was being timed: {failure.reason}")])
        others = [result for result in ready if result is not culprit]
        if kernel == entry.baseline_id:
            self._give_up(entry, others)
        else:
            self._measure(entry, others, crew, seconds)

    def _skip(self, entry: Contenders, reason: str) -> None:
        self._skipped = True
        self._cases.append(_bare_summary(entry))
        self._add([result_for(entry.case, entry.shape, kernel, Status.NOT_MEASURED, reason) for kernel in entry.runnable])

    def _give_up(self, entry: Contenders, ready: list[Result]) -> None:
        """Without a baseline there is nothing to pair with."""
        reason = (
            f"its baseline {entry.baseline_id} failed"
            if entry.baseline is not None
            else f"no baseline of {entry.op.name} runs on {self.device.kind}"
        )
        self._cases.append(_bare_summary(entry))
        self._add([msgspec.structs.replace(result, status=Status.NOT_MEASURED, reason=f"not timed: {reason}") for result in ready])

    def _add(self, results: Sequence[Result]) -> None:
        self._results += results
        for result in results:
            self.reporter.result(result)

    def _show(self, what: str, progress: Progress) -> None:
        warming_up = progress.kernel and what.startswith("measure")
        self.reporter.step(f"{what}: {progress.text}" if warming_up else what, progress.done, progress.total)


def _left(seconds: float | None, began: float) -> float | None:
    """What is left of a case's share of the budget, `began` being when it started to be used."""
    return None if seconds is None else seconds - (time.monotonic() - began)


def _bare_summary(entry: Contenders) -> CaseSummary:
    return CaseSummary(
        case=entry.case,
        shape=entry.shape,
        minimum_bytes=entry.op.minimum_bytes(entry.params),
        flops=entry.op.flops(entry.params),
        baseline=entry.baseline_id or None,
    )
