"""A comparison: this checkout's kernels against those of the other side, in the same rounds of one process, into one record.

Each case is checked, timed and confirmed by itself (`runner.compared_case`), and a case that repeats another takes its results.  Verdicts
come at the end, when the noise of all cases is known (`runner.verdicts`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...device import Device, EnvironmentMonitor, environment_of
from ...schema import AAPair, Case, ExitCode, Sample, Status
from ...stats.confirmation import PROCESSES
from ...stats.fdr import first_level
from ...stats.sequential import Plan
from ...store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison
from ...verdict.revisions import exit_code, judged
from ..case_kernels import CaseKernels, result_for, split_reference
from ..phases import PhaseTimer
from ..repeats import remark_on_repeat, work_of
from ..reporter import Reporter
from ..workers.checking import Workers
from ..workers.pool import WorkerPool
from .compared_case import CaseComparison, CaseFindings, ComparingOptions
from .revisions import KernelPair, Revisions, unchecked

SAMPLED_AA_PAIRS = 2
"""Kernels of identical code that are timed in every case, where there are so many: they show the run's own noise.  Which ones changes from
case to case, so that a suite of five cases times up to ten."""


def default_looks(device_kind: str) -> Plan:
    """When to look at a pair and which change does not matter, on `cpu` or `cuda`.

    A CPU shares its cores and caches with whatever else runs: its margin is a tenth of the time, which tells a blunder from noise.
    """
    return Plan() if device_kind == "cuda" else Plan(looks=(12, 18, 28), margin=0.10, floor_us=1.0)


class ComparingSession:
    """Collects what a comparison finds; `record` may be taken at any time, also after an interruption."""

    def __init__(self, sides: Revisions, base: BaseRevision, device: Device, options: ComparingOptions, reporter: Reporter) -> None:
        self.sides = sides
        self.device = device
        self.options = options
        self.reporter = reporter
        self.samples: list[Sample] = []
        self._base = base
        self._created = datetime.now(UTC)
        self._environment = environment_of(device, options.project_root)
        self._monitor = EnvironmentMonitor(device)
        self._ledger = PhaseTimer()
        self._cases: list[ComparedCase] = []
        self._kernels: list[ComparedKernel] = []
        self._twins: list[AAPair] = []
        self._repeated: dict[tuple[str, bytes], Case] = {}
        self._warnings: list[str] = []
        self._warm_up: dict[str, Any] = {}
        self._timer, self._timer_fallback = options.timer, ""
        self._looks = options.looks
        self._exit_code = ExitCode.PASS
        self._complete = False
        self._skipped = False

    def run(self, cases: Sequence[Case], workers: Workers) -> None:
        """Compare every case.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        self._note_problems(cases)
        self._looks = self._looks_for(cases)
        started = time.monotonic()
        self.reporter.begin(len(cases))
        try:
            with self._monitor, WorkerPool(workers, self._ledger) as pool:
                for number, case in enumerate(cases):
                    entry, kernel_pairs = self.sides.kernel_pairs(case, self.device.kind, self.options.kernel)
                    split_reference(self.sides.new, entry.op)
                    self.reporter.case(number + 1, len(cases), case, entry.shape)
                    left = None if self.options.budget_s is None else self.options.budget_s - (time.monotonic() - started)
                    self._take(entry, kernel_pairs, pool, number, None if left is None else left / (len(cases) - number))
            self._complete = not self._skipped
        finally:
            self.reporter.end()

    def record(self, *, judge: bool = True) -> Comparison:
        """The comparison as it stands, judged by what it has, or with its verdicts pending."""
        state = {**self._environment.state, "during": self._monitor.summary(), "warm_up": self._warm_up}
        kernels = judged(self._kernels, self._twins) if judge else list(self._kernels)
        by_case = {case.case.key: case for case in self._cases}
        for case in self._cases:
            if case.same_as:
                same = [one for one in kernels if one.case_key == by_case[case.same_as].case.key]
                kernels += [msgspec.structs.replace(one, case=case.case.name, suite=case.case.suite) for one in same]
        return Comparison(
            id=secrets.token_hex(4),
            created=self._created.isoformat(timespec="seconds"),
            command=self.options.command,
            timer=self._timer,
            timer_fallback=self._timer_fallback,
            plan=self.options.plan,
            looks=self._looks,
            environment=msgspec.structs.replace(self._environment, state=state),
            base=self._base,
            cases=list(self._cases),
            kernels=kernels,
            twins=list(self._twins),
            spending=self._ledger.spending(),
            warnings=list(dict.fromkeys(self._warnings)),
            complete=self._complete,
            exit_code=exit_code(kernels, self._exit_code),
        )

    @property
    def begun(self) -> bool:
        """Whether there is anything to record."""
        return bool(self._kernels)

    def warn(self, text: str) -> None:
        """Keep a warning for the record and say it now."""
        self._warnings.append(text)
        self.reporter.note(text)

    def _note_problems(self, cases: Sequence[Case]) -> None:
        """A kernel file of this checkout that does not load has failed; one of the other side is one kernel less to compare."""
        ops = {case.op for case in cases}
        for problem in (one for one in self.sides.new.problems if one.op in ops):
            self.warn(f"not loaded: {problem}")
            self._exit_code = ExitCode.KERNEL_FAILED
        for problem in (one for one in self.sides.old.problems if one.op in ops):
            self.warn(f"not loaded on the other side: {problem}")

    def _looks_for(self, cases: Sequence[Case]) -> Plan:
        """The plan, its first stage as strict as the number of comparisons asks for (see `stats.fdr.first_level`)."""
        count = 0
        for case in cases:
            _, kernel_pairs = self.sides.kernel_pairs(case, self.device.kind, self.options.kernel)
            count += sum(not kernel_pair.reason for kernel_pair in kernel_pairs)
        level = first_level(max(1, count), PROCESSES, most=self.options.looks.alarm_level)
        return msgspec.structs.replace(self.options.looks, alarm_level=level)

    def _take(self, entry: CaseKernels, kernel_pairs: list[KernelPair], pool: WorkerPool, number: int, seconds: float | None) -> None:
        """Compare a case, unless an earlier one of this run was the same work."""
        work = work_of(entry)
        known = self._repeated.get(work)
        if known is not None:
            self.reporter.note(remark_on_repeat(entry.case, known.key))
            self._cases.append(ComparedCase(case=entry.case, shape=entry.shape, same_as=known.key))
            return
        if self._case(entry, kernel_pairs, pool, number, seconds):
            self._repeated[work] = entry.case

    def _case(self, entry: CaseKernels, kernel_pairs: list[KernelPair], pool: WorkerPool, number: int, seconds: float | None) -> bool:
        """Whether the case was compared and not skipped."""
        if seconds is not None and seconds <= 0:
            self._skipped = True
            why = f"not compared: the budget of {self.options.budget_s:g} s ended before this case"
            self._cases.append(ComparedCase(case=entry.case, shape=entry.shape))
            self._finish(entry, [unchecked(entry, kernel_pair, why if kernel_pair.compared else "") for kernel_pair in kernel_pairs])
            return False
        work = CaseComparison(
            entry,
            kernel_pairs,
            self._sampled(kernel_pairs, number),
            options=msgspec.structs.replace(self.options, looks=self._looks),
            pool=pool,
            monitor=self._monitor,
            phases=self._ledger,
            reporter=self.reporter,
        )
        try:
            work.compare(seconds)
        finally:
            self._keep(entry.case.key, work.found)  # what was measured before an interruption, too
        self._finish(entry, list(work.found.kernels.values()))
        return True

    def _keep(self, key: str, found: CaseFindings) -> None:
        """Take over what was measured of a case; its kernels follow when it is over."""
        if found.measured is not None:
            self._timer, self._timer_fallback = found.measured.timer, found.measured.timer_fallback
            self._warm_up[key] = found.measured.warm_up
        self._cases += [found.figures] if found.figures is not None else []
        self.samples += found.samples
        self._twins += found.twins
        self._warnings += found.warnings

    def _finish(self, entry: CaseKernels, found: Sequence[ComparedKernel]) -> None:
        self._kernels += found
        for one in found:
            status = Status.MEASURED if one.finding is not None else one.new_status or Status.NOT_MEASURED
            kernel = self.sides.new.kernels.get(one.kernel) or self.sides.old.kernels[one.kernel]
            same = "identical machine code" if one.changed_files else "identical source files"
            seen = one.finding.reason if one.finding is not None else one.reason or same
            self.reporter.result(result_for(entry.case, entry.shape, kernel, status, seen))

    def _sampled(self, kernel_pairs: Sequence[KernelPair], number: int) -> set[str]:
        """Kernels of identical sources that are timed in case `number`."""
        names = [kernel_pair.kernel for kernel_pair in kernel_pairs if kernel_pair.same_source and not kernel_pair.reason]
        if self.options.time_identical:
            return set(names)
        return {names[(SAMPLED_AA_PAIRS * number + place) % len(names)] for place in range(min(SAMPLED_AA_PAIRS, len(names)))}
