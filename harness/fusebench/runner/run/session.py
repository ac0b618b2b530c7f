"""A run: cases through the accuracy gate and the timer, into one record.

Each case is checked and timed by itself (`runner.measured_case`), and a case that repeats another takes its results.  The device is
locked and found idle before anything starts, and watched throughout.  A case during which something touched the device is measured
again; if that goes on, the run ends as unfit, keeping what it has.  When all are measured, those whose verdict is in doubt are measured
again in fresh processes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ...device import Device, EnvironmentMonitor, environment_of
from ...registry import Collection, Kernel
from ...schema import SCHEMA_VERSION, Case, ExitCode, KernelInfo, Result, Run, Sample, Status
from ...stats.weighted import suite_summaries
from ...verdict.compare_to_baseline import Suspect
from ..case_kernels import CaseKernels, case_kernels, result_for, split_reference
from ..phases import PhaseTimer
from ..repeats import Outcome, Repeats, remark_on_repeat
from ..reporter import Reporter
from ..workers.checking import Workers
from ..workers.pool import WorkerPool
from .collected import Collected
from .measured_case import CaseMeasurement, MeasuredCase
from .options import Options
from .remeasure import MOST_CASES, PROCESSES
from .summarise import untimed_summary


class Session:
    """Collects what a run finds; `record` may be taken at any time, also after an interruption."""

    def __init__(self, collection: Collection, device: Device, project_root: Path, options: Options, reporter: Reporter) -> None:
        self.collection = collection
        self.device = device
        self.options = options
        self.reporter = reporter
        self._project_root = project_root
        self._found = Collected()
        self._entries: dict[str, CaseKernels] = {}
        self._timer = options.timer
        self._timer_fallback = ""
        self._exit_code = ExitCode.PASS
        self._created = datetime.now(UTC)
        self._environment = environment_of(device, project_root)
        self._monitor = EnvironmentMonitor(device)
        self._repeats = Repeats()
        self._resumed = options.resumed
        self._ledger = PhaseTimer(self._resumed.run.spending if self._resumed is not None else None)
        self._complete = False
        self._skipped = False

    @property
    def samples(self) -> list[Sample]:
        """Every timed call, in the order in which they were made."""
        return self._found.samples

    def run(self, cases: Sequence[Case], workers: Workers, in_doubt: Callable[[Run], Sequence[Suspect]] = lambda run: ()) -> None:
        """Check and measure every case, except those that the run that is gone on with has finished.

        Args:
            in_doubt: what of the whole is to be measured again, in fresh processes; the most urgent first.

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
            with self._monitor, WorkerPool(workers, self._ledger) as pool:
                for number, case in enumerate(cases):
                    entry = case_kernels(self.collection, case, self.device.kind, self.options.kernel)
                    split_reference(self.collection, entry.op)
                    self.reporter.case(number + 1, len(cases), case, entry.shape)
                    self._entries[case.key] = entry
                    self._take(entry, pool, self._seconds_for(started, len(cases) - number))
                self._look_again(in_doubt(self.record()), pool, started)
            self._complete = not self._skipped
        finally:
            self.reporter.end()

    def record(self) -> Run:
        """The run as it stands."""
        state = {**self._environment.state, "during": self._monitor.summary(), "warm_up": self._found.warm_up}
        kernels = {result.kernel for result in self._found.results}
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
            suites=suite_summaries(self._found.cases, self._found.results),
            cases=list(self._found.cases),
            kernels=[self._info(kernel) for key, kernel in self.collection.kernels.items() if key in kernels],
            results=list(self._found.results),
            spending=self._ledger.spending(),
            resumed_from=[*self._resumed.run.resumed_from, self._resumed.run.id] if self._resumed is not None else [],
            warnings=list(dict.fromkeys(self._found.warnings)),
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
        self._found.warnings.append(text)
        self.reporter.note(text)

    def _note_problems(self, cases: Sequence[Case]) -> None:
        """A kernel file that cannot be loaded is a kernel that failed, where its op is being run."""
        ops = {case.op for case in cases}
        for problem in self.collection.problems:
            if problem.op in ops:
                self._found.warnings.append(f"not loaded: {problem}")
                self._exit_code = ExitCode.KERNEL_FAILED

    def _seconds_for(self, started: float, cases_left: int) -> float | None:
        """This case's even share of what is left of the budget."""
        if self.options.budget_s is None:
            return None
        return (self.options.budget_s - (time.monotonic() - started)) / cases_left

    def _take(self, entry: CaseKernels, pool: WorkerPool, seconds: float | None) -> None:
        """Measure a case, unless the run that is gone on with did, or an earlier one of this run was the same work."""
        if self._take_over(entry):
            return
        known = self._repeats.outcome_of(entry)
        if known is not None:
            self.reporter.note(remark_on_repeat(entry.case, known.summary.same_as))
            self._found.cases.append(known.summary)
            self._add(known.results)
        elif seconds is not None and seconds <= 0:
            self._skip(entry)
        else:
            self._measure(entry, pool, seconds)

    def _take_over(self, entry: CaseKernels) -> bool:
        """Take the case from the run that is gone on with; False where that has not finished it."""
        kernels = [str(kernel.id) for kernel in entry.runnable] + [result.kernel for result in entry.declined]
        found = self._resumed.finished(entry.case, kernels) if self._resumed is not None else None
        if found is None or self._resumed is None:
            return False
        summary, results, samples = found
        self._timer, self._timer_fallback = self._resumed.run.timer, self._resumed.run.timer_fallback
        self._found.cases.append(summary)
        self._found.samples += samples
        self._add(results)
        if not summary.same_as:
            self._repeats.keep(entry, Outcome(summary, tuple(results)))
        return True

    def _skip(self, entry: CaseKernels) -> None:
        self._skipped = True
        reason = f"the budget of {self.options.budget_s:g} s ended before this case"
        self._found.cases.append(untimed_summary(entry))
        self._add(entry.declined)
        self._add([result_for(entry.case, entry.shape, kernel, Status.NOT_MEASURED, reason) for kernel in entry.runnable])

    def _measure(self, entry: CaseKernels, pool: WorkerPool, seconds: float | None) -> None:
        work = self._work(entry, pool, self.options.timer)
        try:
            work.measure(seconds)
        finally:
            self._keep(entry.case.key, work.found)  # what is final before an interruption, too
        assert work.found.summary is not None, "a case that is over has a summary"
        self._repeats.keep(entry, Outcome(work.found.summary, tuple(work.found.results)))

    def _look_again(self, suspects: Sequence[Suspect], pool: WorkerPool, started: float) -> None:
        """Measure the first cases in doubt once more, as far as the budget reaches."""
        if len(suspects) > MOST_CASES:
            self.warn(
                f"{len(suspects)} cases are in doubt, and {MOST_CASES} are measured again: the others' figures are those of one process"
            )
        chosen = suspects[:MOST_CASES]
        longest = 0.0
        for number, suspect in enumerate(chosen):
            began = time.monotonic()
            if self.options.budget_s is not None and began + longest - started >= self.options.budget_s:
                left = ", ".join(one.case for one in chosen[number:])
                self.warn(f"the budget of {self.options.budget_s:g} s ended before what is in doubt could be measured again: {left}")
                return
            entry = self._entries[suspect.case]
            self.warn(
                f"case {suspect.case}: in doubt after its first process, so measured again in {PROCESSES} fresh ones: {suspect.reason}"
            )
            self.reporter.case(number + 1, len(chosen), entry.case, entry.shape)
            self._measure_again(entry, suspect, pool)
            longest = max(longest, time.monotonic() - began)

    def _measure_again(self, entry: CaseKernels, suspect: Suspect, pool: WorkerPool) -> None:
        # With the timer of the first measurement: times of two timers are never compared.
        work = self._work(entry, pool, self._timer)
        try:
            work.measure_again(self._found.results_of(suspect.case), suspect.reason)
        finally:
            self._found.warnings += work.found.warnings
        # Samples only together with the figures that are of them: an interruption keeps neither.
        self._found.keep_measured(suspect.case, work.found.measured, first=1)
        self._found.replace(suspect.case, work.found.summary, work.found.results)

    def _work(self, entry: CaseKernels, pool: WorkerPool, timer: str) -> CaseMeasurement:
        return CaseMeasurement(
            entry, pool, plan=self.options.plan, timer=timer, monitor=self._monitor, phases=self._ledger, reporter=self.reporter
        )

    def _keep(self, key: str, found: MeasuredCase) -> None:
        """Take over what was found on a case; the reporter has heard of it."""
        if found.measured:
            self._timer, self._timer_fallback = found.measured[0].timer, found.measured[0].timer_fallback
        self._found.keep(key, found)

    def _add(self, results: Sequence[Result]) -> None:
        self._found.results += results
        for result in results:
            self.reporter.result(result)
