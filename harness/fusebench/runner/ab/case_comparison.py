"""The work on one case of a comparison.

Head and base go through the accuracy gate on the same inputs.  The correct kernels are timed in paired rounds until every pair is decided,
and fresh processes confirm every change.  A kernel that fails while it is timed is out; the others go on without it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ...schema import AAPair, Sample, Status, Verdict, VerdictKind
from ...stats.confirmation import confirm
from ...stats.sequential import Plan
from ...store.comparison_record import ComparedCase, ComparedKernel
from ...timing.coldness import require_emptied
from ...timing.placement import CONTROL
from ...verdict.conclusion import PROCESSES
from ...verdict.revisions import identical, judged_by_times
from ..case_kernels import CaseKernels
from ..context import CHECK, MeasuringContext
from ..workers.checking import unless_spoiling
from ..workers.interference import Worker
from ..workers.protocol import BASE, CompareTask, ConfirmTask, Failure, Measured, Progress
from ..workers.remarks import common_failure, label_refused, own_failure, remark_on_timer, remarks_on_timing
from .pairing import aa_pair_of, case_figures, confirming_task, control_aa_pair, measure_in_fresh, paired_task
from .revisions import KernelPair, both_right, check_both, unchecked, with_checks


class CaseFindings(msgspec.Struct, kw_only=True):
    """The findings of a case so far; they grow while the case is being compared."""

    kernels: dict[str, ComparedKernel]
    figures: ComparedCase | None = None
    """The case itself; None until its kernels are timed, or known not to be."""
    measured: Measured | None = None
    """The first process's answer; None if nothing was timed."""
    samples: list[Sample] = []
    """Those of the first process, then those of the fresh ones."""
    aa_pairs: list[AAPair] = []
    """Comparisons of identical code."""

    def note(self, kernel: str, **known: Any) -> None:
        """Add to what is known of a kernel."""
        self.kernels[kernel] = msgspec.structs.replace(self.kernels[kernel], **known)


class CaseComparison:
    """Compares one case; `found` may be taken at any time, also after an interruption."""

    def __init__(
        self,
        unit: CaseKernels,
        pairs: Sequence[KernelPair],
        sampled: Collection[str],
        *,
        looks: Plan,
        time_identical: bool,
        context: MeasuringContext,
    ) -> None:
        """
        Args:
            sampled: kernels of identical source files that are timed even so.
            time_identical: whether pairs that turn out to launch the same machine code are timed as well.
        """
        self.found = CaseFindings(kernels={pair.kernel: unchecked(unit, pair) for pair in pairs})
        self._unit, self._pairs, self._sampled = unit, pairs, sampled
        self._looks, self._time_identical, self._context = looks, time_identical, context

    def measure(self, seconds: float | None) -> None:
        """Check head and base of every kernel, and time the correct pairs.

        Args:
            seconds: the time of the case, without confirmation; None for no limit.

        Raises:
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
        """
        began = time.monotonic()
        chosen = [pair for pair in self._pairs if pair.compared and (pair.changed or pair.kernel in self._sampled)]
        with self._context.phases.timed(CHECK):
            seed = secrets.randbits(32)  # one, so that a worker computes the draws of the case once
            checked = {
                pair.kernel: check_both(
                    self._context.pool, self._unit, pair, seed=seed, on_progress=self._show_check, on_remark=self._context.warn
                )
                for pair in chosen
            }
        failures = self._context.pool.failures
        checked = {
            name: (unless_spoiling(head, failures), None if base is None else unless_spoiling(base, failures, BASE))
            for name, (head, base) in checked.items()
        }
        for name, (head, base) in checked.items():
            self.found.kernels[name] = with_checks(self.found.kernels[name], head, base)
        left = None if seconds is None else seconds - (time.monotonic() - began)
        self._time([pair for pair in chosen if not pair.reason and both_right(checked[pair.kernel])], left)

    def _time(self, ready: Sequence[KernelPair], seconds: float | None) -> None:
        """Time `ready` in pairs, and note times and findings."""
        unit, found, plan = self._unit, self.found, self._context.plan
        if not ready:
            found.figures = ComparedCase(case=unit.case, shape=unit.shape)
            return
        names = tuple(pair.kernel for pair in ready)
        task = paired_task(
            unit.case,
            names,
            plan=plan,
            looks=self._looks,
            timer=self._context.pool.timer,
            seconds=seconds,
            skip_identical=not self._time_identical,
            sampled=tuple(pair.kernel for pair in ready if pair.kernel in self._sampled or pair.changed_data),
        )
        reply = self._ask(task, self._context.pool.native)
        if isinstance(reply, Failure):
            self._time_without(reply, ready, seconds)
            return
        self._note_timing(reply)
        if reply.wrong:
            self._withdraw(reply, ready, seconds)
            return
        found.samples += reply.samples
        found.figures = case_figures(unit, reply, plan, names[0])
        for name in names:
            found.note(name, same_code=True if not found.kernels[name].changed_files else reply.same_code.get(name))
        if refused := label_refused(reply, plan.trim):
            self._refuse(names, f"its times are labelled cold, but {refused}")
            return
        copied = names[0]
        for arm, why in reply.suspicious.items():
            doubted = copied if arm == CONTROL else arm.removeprefix(BASE)
            self._refuse([doubted], f"the time of {arm} is suspicious: {why}")
            names = tuple(name for name in names if name != doubted)
        for name in names:
            compared = reply.compared.get(name)
            if compared is not None:
                times = {"new_us": compared.new_us, "old_us": compared.old_us}
                found.note(name, **times, finding=compared.finding, launches=compared.launches)
        equal = [name for name in names if identical(found.kernels[name]) and not found.kernels[name].changed_data]
        aa_pairs = [aa_pair_of(unit.case.key, reply.compared.get(name)) for name in equal]
        control = control_aa_pair(unit.case.key, copied, reply.samples, plan, self._looks) if copied in names else None
        found.aa_pairs += [pair for pair in (*aa_pairs, control) if pair is not None]
        self._confirm(task)

    def _ask(self, task: CompareTask | ConfirmTask, worker: Worker) -> Measured | Failure:
        reply = self._context.ask(task, worker)
        if isinstance(reply, Measured):
            require_emptied(reply.coldness)
        return reply

    def _time_without(self, failure: Failure, ready: Sequence[KernelPair], seconds: float | None) -> None:
        """A kernel failed while it was timed: its pair is out, the others are measured without it."""
        arm = ready[0].kernel if failure.kernel == CONTROL else failure.kernel
        culprit = next((pair for pair in ready if pair.kernel == arm.removeprefix(BASE)), None)
        if culprit is None:
            for pair in ready:
                self.found.note(pair.kernel, new_status=failure.status, reason=common_failure(failure))
            self._time([], seconds)
            return
        timed = own_failure(failure)
        if arm.startswith(BASE):
            reason = f"fails in the base revision ({failure.status.value}): {timed}"
            self.found.note(culprit.kernel, old_status=failure.status, reason=reason)
        else:
            self.found.note(culprit.kernel, new_status=failure.status, reason=timed)
        self._time([pair for pair in ready if pair is not culprit], seconds)

    def _note_timing(self, reply: Measured) -> None:
        self.found.measured = reply
        self._context.phases.add(reply.phases_s, reply.first_call_s)
        if remark := remark_on_timer(reply):
            self._context.warnings.append(remark)
        if reply.cut_short:
            self._context.warn(f"case {self._unit.case.key}: the budget ended before every pair was decided")
        for remark in remarks_on_timing(self._unit.case, [reply]):
            self._context.warn(remark)

    def _withdraw(self, reply: Measured, ready: Sequence[KernelPair], seconds: float | None) -> None:
        """Kernels gave wrong outputs while they were timed: their pairs are out, the others are measured without them."""
        arm, reason = next(iter(reply.wrong.items()))
        self._time_without(Failure(status=Status.WRONG, reason=reason, kernel=arm), ready, seconds)

    def _refuse(self, names: Sequence[str], why: str) -> None:
        """Leave pairs undecided: warm samples labelled `cold` and suspicious ones say nothing about the kernels or the run's noise."""
        self._context.warn(f"case {self._unit.case.key} is not judged: {why}")
        for name in names:
            self.found.note(name, reason=why, verdict=Verdict(kind=VerdictKind.UNDECIDED, reason=why))

    def _confirm(self, task: CompareTask) -> None:
        """Measure every change again, in fresh processes."""
        claims = {
            name: one.finding
            for name, one in self.found.kernels.items()
            if one.finding is not None and one.finding.claims_change and judged_by_times(one)
        }
        if not claims:
            return
        context = self._context
        context.reporter.step("start fresh processes", 0, PROCESSES)
        fresh = context.fresh(PROCESSES)
        with context.phases.timed("confirmation in fresh processes"):
            taken = measure_in_fresh(
                confirming_task(task, claims),
                fresh,
                ask=self._ask,
                keep=self.found.samples.extend,
                on_process=lambda done, total: context.reporter.step("confirm in fresh processes", done, total),
            )
        if isinstance(taken, Failure):
            context.warn(f"case {task.case.key}: not confirmed, since a fresh process failed: {taken.reason}")
            return
        for name, logs in taken.items():
            self.found.note(name, confirmation=confirm(claims[name], logs))

    def _show_check(self, progress: Progress) -> None:
        self._context.reporter.step(f"check {progress.kernel}", progress.done, progress.total)
