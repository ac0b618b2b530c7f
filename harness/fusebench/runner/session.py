"""A run: cases through the accuracy gate and the timer, into one record.

Each case is checked and timed by itself (`runner.measured_case`), and a case that repeats another takes its results.  The device is
locked and found idle before anything starts, and watched throughout.  A case during which something touched the device is measured
again; if that goes on, the run ends as unfit, keeping what it has.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..device import Device, EnvironmentMonitor, environment_of
from ..registry import Collection, Kernel
from ..schema import SCHEMA_VERSION, Case, CaseSummary, ExitCode, KernelInfo, Result, Run, Sample, Status
from ..stats.weighted import suite_summaries
from .checking import Workers
from .contenders import Contenders, contenders, result_for, split_reference
from .crew import Crew
from .measured_case import CaseMeasurement, MeasuredCase
from .repeats import Outcome, Repeats, remark_on_repeat
from .reporter import Reporter
from .run_options import Options
from .spending import Ledger
from .summarise import untimed_summary


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
            self.reporter.note(remark_on_repeat(entry.case, known.summary.same_as))
            self._cases.append(known.summary)
            self._add(known.results)
        elif seconds is not None and seconds <= 0:
            self._skip(entry)
        else:
            self._measure(entry, crew, seconds)

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

    def _skip(self, entry: Contenders) -> None:
        self._skipped = True
        reason = f"the budget of {self.options.budget_s:g} s ended before this case"
        self._cases.append(untimed_summary(entry))
        self._add(entry.declined)
        self._add([result_for(entry.case, entry.shape, kernel, Status.NOT_MEASURED, reason) for kernel in entry.runnable])

    def _measure(self, entry: Contenders, crew: Crew, seconds: float | None) -> None:
        work = CaseMeasurement(
            entry,
            crew,
            plan=self.options.plan,
            timer=self.options.timer,
            monitor=self._monitor,
            ledger=self._ledger,
            reporter=self.reporter,
        )
        try:
            work.measure(seconds)
        finally:
            self._keep(entry.case.key, work.found)  # what is final before an interruption, too
        assert work.found.summary is not None, "a case that is over has a summary"
        self._repeats.keep(entry, Outcome(work.found.summary, tuple(work.found.results)))

    def _keep(self, key: str, found: MeasuredCase) -> None:
        """Take over what was found on a case; the reporter has heard of it."""
        if found.measured:
            self._timer, self._timer_fallback = found.measured[0].timer, found.measured[0].timer_fallback
        for number, reply in enumerate(found.measured):
            self._warm_up[f"{key} in process {number + 1}" if number else key] = reply.warm_up
            self.samples += reply.samples
        self._cases += [found.summary] if found.summary is not None else []
        self._results += found.results
        self._warnings += found.warnings

    def _add(self, results: Sequence[Result]) -> None:
        self._results += results
        for result in results:
            self.reporter.result(result)
