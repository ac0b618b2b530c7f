"""The work on one case of a comparison.

Both sides go through the accuracy gate on the same inputs.  Those that pass are timed in paired rounds until every pair is decided, and
what looks like a change is measured again in fresh processes.  A kernel that fails while it is timed is out; the others go on without it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...device import EnvironmentMonitor
from ...schema import AAPair, Sample, SamplingPlan, Verdict, VerdictKind
from ...stats.confirmation import PROCESSES, confirm, needs_confirmation
from ...stats.sequential import Plan
from ...store.comparison_record import ComparedCase, ComparedKernel
from ...timing.coldness import require_emptied
from ...timing.placement import CONTROL
from ...verdict.revisions import identical
from ..case_kernels import CaseKernels
from ..cold_label import label_refused
from ..phases import CHECK, PhaseTimer
from ..reporter import Reporter
from ..timing_remarks import common_failure, own_failure, remark_on_timer, remarks_on_timing
from ..workers.interference import Worker, measure_with_retry
from ..workers.pool import WorkerPool
from ..workers.protocol import BASE, Failure, Measured, MeasureTask, Progress
from .fresh_processes import in_fresh_processes
from .pairing import aa_pair_of, case_figures, control_aa_pair, paired_task
from .revisions import KernelPair, both_right, check_both, unchecked, with_checks


class ComparingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to compare."""

    plan: SamplingPlan
    looks: Plan
    timer: str = "auto"
    budget_s: float | None = None
    kernel: str | None = None
    time_identical: bool = False
    """Whether every kernel of identical code is timed, and not a sample."""
    command: str = ""
    project_root: Path
    """Whose commit is this side's."""


class CaseFindings(msgspec.Struct, kw_only=True):
    """What is known of a case; it grows while the case is being compared."""

    kernels: dict[str, ComparedKernel]
    figures: ComparedCase | None = None
    """The case itself; None until its kernels are timed, or known not to be."""
    measured: Measured | None = None
    """The first process's answer; None where nothing was timed."""
    samples: list[Sample] = []
    """Those of the first process, then those of the fresh ones."""
    twins: list[AAPair] = []
    warnings: list[str] = []

    def note(self, kernel: str, **known: Any) -> None:
        """Add to what is known of a kernel."""
        self.kernels[kernel] = msgspec.structs.replace(self.kernels[kernel], **known)


class CaseComparison:
    """Compares one case; `found` may be taken at any time, also after an interruption."""

    def __init__(
        self,
        entry: CaseKernels,
        kernel_pairs: Sequence[KernelPair],
        sampled: Collection[str],
        *,
        options: ComparingOptions,
        pool: WorkerPool,
        monitor: EnvironmentMonitor,
        phases: PhaseTimer,
        reporter: Reporter,
    ) -> None:
        """`sampled`: kernels that are timed although their code is identical.  `monitor` watches while `compare` is called."""
        self.found = CaseFindings(kernels={kernel_pair.kernel: unchecked(entry, kernel_pair) for kernel_pair in kernel_pairs})
        self._entry, self._couples, self._sampled, self._options = entry, kernel_pairs, sampled, options
        self._pool, self._monitor, self._ledger, self._reporter = pool, monitor, phases, reporter

    def compare(self, seconds: float | None) -> None:
        """Check both sides of every kernel_pair, and time those that are right.

        Args:
            seconds: what the case may take, confirmation left out; None for no limit.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        began = time.monotonic()
        chosen = [
            kernel_pair
            for kernel_pair in self._couples
            if kernel_pair.compared and (kernel_pair.changed or kernel_pair.kernel in self._sampled)
        ]
        with self._ledger.timed(CHECK):
            checked = {
                kernel_pair.kernel: check_both(self._pool.workers, self._entry, kernel_pair, on_progress=self._show_check)
                for kernel_pair in chosen
            }
        for name, (new, old) in checked.items():
            self.found.kernels[name] = with_checks(self.found.kernels[name], new, old)
        left = None if seconds is None else seconds - (time.monotonic() - began)
        self._measure([kernel_pair for kernel_pair in chosen if not kernel_pair.reason and both_right(checked[kernel_pair.kernel])], left)

    def _measure(self, ready: Sequence[KernelPair], seconds: float | None) -> None:
        """Time `ready` in pairs, and note times and findings."""
        entry, found, plan = self._entry, self.found, self._options.plan
        if not ready:
            found.figures = ComparedCase(case=entry.case, shape=entry.shape)
            return
        names = tuple(kernel_pair.kernel for kernel_pair in ready)
        task = paired_task(
            entry.case,
            names,
            plan=plan,
            looks=self._options.looks,
            timer=self._options.timer,
            seconds=seconds,
            skip_identical=not self._options.time_identical,
            sampled=tuple(name for name in names if name in self._sampled),
        )
        reply = self._ask(task, self._pool.native)
        if isinstance(reply, Failure):
            self._measure_without(reply, ready, seconds)
            return
        self._note_timing(reply)
        found.samples += reply.samples
        found.figures = case_figures(entry, reply, plan, names[0])
        for name in names:
            found.note(name, same_code=True if not found.kernels[name].changed_files else reply.same_code.get(name))
        if refused := label_refused(reply, plan.trim):
            self._refuse(names, refused)
            return
        for name in names:
            compared = reply.compared.get(name)
            if compared is not None:
                times = {"new_us": compared.new_us, "old_us": compared.old_us}
                found.note(name, **times, finding=compared.finding, launches=compared.launches)
        twins = [aa_pair_of(entry.case.key, reply.compared.get(name)) for name in names if identical(found.kernels[name])]
        control = control_aa_pair(entry.case.key, names[0], reply.samples, plan, self._options.looks)
        found.twins += [twin for twin in (*twins, control) if twin is not None]
        self._confirm(task)

    def _ask(self, task: MeasureTask, worker: Worker) -> Measured | Failure:
        reply = measure_with_retry(
            task, worker, self._monitor, self._pool.workers.device, on_progress=self._show_measuring, warn=self._warn
        )
        if isinstance(reply, Measured):
            require_emptied(reply.coldness)
        return reply

    def _measure_without(self, failure: Failure, ready: Sequence[KernelPair], seconds: float | None) -> None:
        """A kernel failed while it was timed: its kernel_pair is out, the others are measured without it."""
        arm = ready[0].kernel if failure.kernel == CONTROL else failure.kernel
        culprit = next((kernel_pair for kernel_pair in ready if kernel_pair.kernel == arm.removeprefix(BASE)), None)
        if culprit is None:
            for kernel_pair in ready:
                self.found.note(kernel_pair.kernel, new_status=failure.status, reason=common_failure(failure))
            self._measure([], seconds)
            return
        timed = own_failure(failure)
        if arm.startswith(BASE):
            reason = f"fails on the other side ({failure.status.value}): {timed}"
            self.found.note(culprit.kernel, old_status=failure.status, reason=reason)
        else:
            self.found.note(culprit.kernel, new_status=failure.status, reason=timed)
        self._measure([kernel_pair for kernel_pair in ready if kernel_pair is not culprit], seconds)

    def _note_timing(self, reply: Measured) -> None:
        self.found.measured = reply
        self._ledger.add(reply.phases_s, reply.first_call_s)
        if remark := remark_on_timer(reply):
            self.found.warnings.append(remark)
        if reply.cut_short:
            self._warn(f"case {self._entry.case.key}: the budget ended before every pair was decided")
        for remark in remarks_on_timing(self._entry.case, [reply]):
            self._warn(remark)

    def _refuse(self, names: Sequence[str], refused: str) -> None:
        """Samples that carry the label `cold` and are not say nothing of the kernels, nor of the run's noise."""
        why = f"its times are labelled cold, but {refused}"
        self._warn(f"case {self._entry.case.key} is not judged: {why}")
        for name in names:
            self.found.note(name, reason=why, verdict=Verdict(kind=VerdictKind.UNDECIDED, reason=why))

    def _confirm(self, task: MeasureTask) -> None:
        """Measure what looks like a change again, in fresh processes."""
        claims = {
            name: one.finding
            for name, one in self.found.kernels.items()
            if one.finding is not None and needs_confirmation(one.finding) and not identical(one)
        }
        if not claims:
            return
        self._reporter.step("start fresh processes", 0, PROCESSES)
        fresh = self._pool.fresh(PROCESSES)
        with self._ledger.timed("confirmation in fresh processes"):
            taken = in_fresh_processes(
                task,
                claims,
                fresh,
                ask=self._ask,
                keep=self.found.samples.extend,
                on_process=lambda done, total: self._reporter.step("confirm in fresh processes", done, total),
            )
        if isinstance(taken, Failure):
            self._warn(f"case {task.case.key}: not confirmed, since a fresh process failed: {taken.reason}")
            return
        for name, logs in taken.items():
            self.found.note(name, confirmation=confirm(claims[name], logs))

    def _warn(self, text: str) -> None:
        self.found.warnings.append(text)
        self._reporter.note(text)

    def _show_check(self, progress: Progress) -> None:
        self._reporter.step(f"check {progress.kernel}", progress.done, progress.total)

    def _show_measuring(self, progress: Progress) -> None:
        self._reporter.step(f"measure: {progress.text}" if progress.kernel else "measure", progress.done, progress.total)
