"""A comparison: this checkout's kernels against those of the other side, in the same rounds of one process, into one record.

Every case: which kernels differ, the accuracy gate for both sides on the same inputs, paired rounds until every pair is decided, and fresh
processes for what looks like a change.  Verdicts come at the end, when the noise of all cases is known (`runner.verdicts`).
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..device import Device, EnvironmentMonitor, environment_of
from ..errors import DeviceUnfitError
from ..schema import Case, ExitCode, Result, Sample, SamplingPlan, Status, Verdict, VerdictKind
from ..stats.confirmation import PROCESSES, confirm, needs_confirmation
from ..stats.fdr import first_level
from ..stats.identical import Twin
from ..stats.sequential import Plan
from ..store.comparison_record import ComparedCase, ComparedKernel, Comparison, OtherSide
from ..timing.coldness import require_emptied
from ..timing.placement import CONTROL
from .checking import Workers, check
from .cold_label import label_refused
from .contenders import Contenders, result_for, split_reference
from .fresh_processes import in_fresh_processes
from .messages import BASE, ExtraArm, Failure, Measured, MeasureTask, Progress
from .pairing import case_figures, control_twin, pairs_of, twin_of
from .reporter import Reporter
from .spending import CHECK, Ledger
from .two_sides import Couple, Sides, both_right, with_checks
from .undisturbed import measure_undisturbed
from .verdicts import PENDING, exit_code, identical, judged

SAMPLED_TWINS = 2
"""Kernels of identical code that are timed in every case, where there are so many: they show the run's own noise.  Which ones changes from
case to case, so that a suite of five cases times up to ten."""


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


def default_looks(device_kind: str) -> Plan:
    """When to look at a pair and which change does not matter, on `cpu` or `cuda`.

    A CPU shares its cores and caches with whatever else runs: its margin is a tenth of the time, which tells a blunder from noise.
    """
    return Plan() if device_kind == "cuda" else Plan(looks=(12, 18, 28), margin=0.10, floor_us=1.0)


@dataclass
class _CaseWork:
    """One case while it is being compared."""

    entry: Contenders
    couples: list[Couple]
    sampled: set[str]
    """Kernels that are timed although their code is identical."""
    seconds: float | None
    """Time left for the case; None for no limit."""
    found: dict[str, ComparedKernel]

    def note(self, kernel: str, **known: Any) -> None:
        """Add to what is known of a kernel."""
        self.found[kernel] = msgspec.structs.replace(self.found[kernel], **known)


class ComparingSession:
    """Collects what a comparison finds; `record` may be taken at any time, also after an interruption."""

    def __init__(self, sides: Sides, base: OtherSide, device: Device, options: ComparingOptions, reporter: Reporter) -> None:
        self.sides = sides
        self.device = device
        self.options = options
        self.reporter = reporter
        self.samples: list[Sample] = []
        self._base = base
        self._created = datetime.now(UTC)
        self._environment = environment_of(device, options.project_root)
        self._monitor = EnvironmentMonitor(device)
        self._ledger = Ledger()
        self._cases: list[ComparedCase] = []
        self._kernels: list[ComparedKernel] = []
        self._twins: list[Twin] = []
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
            with self._monitor:
                for number, case in enumerate(cases):
                    entry, couples = self.sides.couples(case, self.device.kind, self.options.kernel)
                    split_reference(self.sides.new, entry.op)
                    self.reporter.case(number + 1, len(cases), case, entry.shape)
                    left = None if self.options.budget_s is None else self.options.budget_s - (time.monotonic() - started)
                    self._take(entry, couples, workers, number, None if left is None else left / (len(cases) - number))
            self._complete = not self._skipped
        finally:
            self.reporter.end()

    def record(self) -> Comparison:
        """The comparison as it stands, judged by what it has."""
        state = {**self._environment.state, "during": self._monitor.summary(), "warm_up": self._warm_up}
        kernels = judged(self._kernels, self._twins)
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
            _, couples = self.sides.couples(case, self.device.kind, self.options.kernel)
            count += sum(not couple.reason for couple in couples)
        level = first_level(max(1, count), PROCESSES, most=self.options.looks.alarm_level)
        return msgspec.structs.replace(self.options.looks, alarm_level=level)

    def _take(self, entry: Contenders, couples: list[Couple], workers: Workers, number: int, seconds: float | None) -> None:
        """Compare a case, unless an earlier one of this run was the same work."""
        work = (entry.op.name, msgspec.json.encode(entry.params, order="deterministic"))
        known = self._repeated.get(work)
        if known is not None:
            self.reporter.note(f"case {entry.case.key} is the same work as {known.key}, whose results it takes")
            self._cases.append(ComparedCase(case=entry.case, shape=entry.shape, same_as=known.key))
            return
        if self._case(entry, couples, workers, number, seconds):
            self._repeated[work] = entry.case

    def _case(self, entry: Contenders, couples: list[Couple], workers: Workers, number: int, seconds: float | None) -> bool:
        """Whether the case was compared and not skipped."""
        began = time.monotonic()
        if seconds is not None and seconds <= 0:
            self._skipped = True
            why = f"not compared: the budget of {self.options.budget_s:g} s ended before this case"
            self._cases.append(ComparedCase(case=entry.case, shape=entry.shape))
            self._finish(entry, [self._entry(entry, couple, undecided=why if couple.compared else "") for couple in couples])
            return False
        found = {couple.kernel: self._entry(entry, couple) for couple in couples}
        work = _CaseWork(entry, couples, self._sampled(couples, number), seconds, found)
        chosen = [couple for couple in couples if couple.compared and (couple.changed or couple.kernel in work.sampled)]
        with self._ledger.timed(CHECK):
            checked = {couple.kernel: self._check(entry, couple, workers) for couple in chosen}
        for name, (new, old) in checked.items():
            found[name] = with_checks(found[name], new, old)
        if seconds is not None:
            work.seconds = seconds - (time.monotonic() - began)
        ready = [couple for couple in chosen if not couple.reason and both_right(checked[couple.kernel])]
        self._measure(work, ready, workers)
        self._finish(entry, list(found.values()))
        return True

    def _finish(self, entry: Contenders, found: Sequence[ComparedKernel]) -> None:
        self._kernels += found
        for one in found:
            status = Status.MEASURED if one.finding is not None else one.new_status or Status.NOT_MEASURED
            kernel = self.sides.new.kernels.get(one.kernel) or self.sides.old.kernels[one.kernel]
            same = "identical machine code" if one.changed_files else "identical source files"
            seen = one.finding.reason if one.finding is not None else one.reason or same
            self.reporter.result(result_for(entry.case, entry.shape, kernel, status, seen))

    def _sampled(self, couples: Sequence[Couple], number: int) -> set[str]:
        """Kernels of identical sources that are timed in case `number`."""
        names = [couple.kernel for couple in couples if couple.same_source and not couple.reason]
        if self.options.time_identical:
            return set(names)
        return {names[(SAMPLED_TWINS * number + place) % len(names)] for place in range(min(SAMPLED_TWINS, len(names)))}

    def _entry(self, entry: Contenders, couple: Couple, undecided: str = "") -> ComparedKernel:
        """What is known of a kernel before it is run."""
        lost = couple.reason if couple.reason.startswith("does not run here") else ""
        verdict = Verdict(kind=VerdictKind.UNDECIDED, reason=undecided or lost) if undecided or lost else PENDING
        return ComparedKernel(
            case=entry.case.name,
            suite=entry.case.suite,
            op=entry.op.name,
            kernel=couple.kernel,
            role=couple.kernel_or_other.role,
            standing=couple.standing,
            changed_files=couple.changed,
            reason=undecided or couple.reason,
            verdict=verdict,
        )

    def _check(self, entry: Contenders, couple: Couple, workers: Workers) -> tuple[Result, Result | None]:
        """Both sides through the gate on the same seed; identical sources once, the other side not at all where this one fails."""
        assert couple.new is not None
        assert couple.old is not None
        seed = secrets.randbits(32)
        new = check(workers, entry, couple.new, seed=seed, on_progress=lambda progress: self._show(f"check {progress.kernel}", progress))
        if new.status is not Status.CHECKED:
            return new, None
        if couple.same_source:
            return new, new
        old = check(
            workers,
            entry,
            couple.old,
            seed=seed,
            prefix=BASE,
            on_progress=lambda progress: self._show(f"check {progress.kernel}", progress),
        )
        return new, old

    def _measure(self, work: _CaseWork, ready: list[Couple], workers: Workers) -> None:
        """Time `ready` in pairs, and note times and findings."""
        entry, found = work.entry, work.found
        if not ready:
            self._cases.append(ComparedCase(case=entry.case, shape=entry.shape))
            return
        names = tuple(couple.kernel for couple in ready)
        pairs = pairs_of(names)
        task = MeasureTask(
            case=entry.case,
            kernels=names,
            baseline=names[0],
            plan=self.options.plan,
            timer=self.options.timer,
            seed=random.SystemRandom().randrange(2**31),
            seconds=work.seconds,
            extra_arms=tuple(ExtraArm(name=f"{BASE}{name}", kernel=f"{BASE}{name}") for name in names),
            pairs=pairs,
            looks=self._looks,
            digested=tuple(arm for pair in pairs for arm in (pair.new, pair.old)),
            skip_identical=not self.options.time_identical,
            sampled=tuple(name for name in names if name in work.sampled),
        )
        reply = self._ask(task, workers.native)
        if isinstance(reply, Failure):
            self._measure_without(reply, work, ready, workers)
            return
        self._note_timing(entry, reply)
        self.samples += reply.samples
        self._cases.append(case_figures(entry, reply, self.options.plan, names[0]))
        for name in names:
            work.note(name, same_code=True if not found[name].changed_files else reply.same_code.get(name))
        if refused := label_refused(reply, self.options.plan.trim):
            self._refuse(work, names, refused)
            return
        for name in names:
            compared = reply.compared.get(name)
            if compared is not None:
                work.note(name, new_us=compared.new_us, old_us=compared.old_us, finding=compared.finding)
        self._twins += [twin for name in names if identical(found[name]) and (twin := twin_of(entry.case.key, reply.compared.get(name)))]
        control = control_twin(entry.case.key, names[0], reply.samples, self.options.plan, self._looks)
        self._twins += [control] if control is not None else []
        self._confirm(task, work, workers)

    def _refuse(self, work: _CaseWork, names: Sequence[str], refused: str) -> None:
        """Samples that carry the label `cold` and are not say nothing of the kernels, nor of the run's noise."""
        why = f"its times are labelled cold, but {refused}"
        self.warn(f"case {work.entry.case.key} is not judged: {why}")
        for name in names:
            work.note(name, reason=why, verdict=Verdict(kind=VerdictKind.UNDECIDED, reason=why))

    def _confirm(self, task: MeasureTask, work: _CaseWork, workers: Workers) -> None:
        """Measure what looks like a change again, in fresh processes."""
        claims = {
            name: one.finding
            for name, one in work.found.items()
            if one.finding is not None and needs_confirmation(one.finding) and not identical(one)
        }
        if not claims:
            return
        with self._ledger.timed("confirmation in fresh processes"):
            taken = in_fresh_processes(
                task,
                claims,
                workers,
                ask=self._ask,
                keep=self.samples.extend,
                on_process=lambda done, total: self.reporter.step("confirm in fresh processes", done, total),
            )
        if isinstance(taken, Failure):
            self.warn(f"case {task.case.key}: not confirmed, since a fresh process failed: {taken.reason}")
            return
        for name, logs in taken.items():
            work.note(name, confirmation=confirm(claims[name], logs))

    def _ask(self, task: MeasureTask, worker: Any) -> Measured | Failure:
        reply = measure_undisturbed(
            task, worker, self._monitor, self.device, on_progress=lambda progress: self._show("measure", progress), warn=self.warn
        )
        if isinstance(reply, Failure) and reply.unfit:
            raise DeviceUnfitError(f"case {task.case.key}: {reply.reason}")
        if isinstance(reply, Measured):
            require_emptied(reply.coldness)
        return reply

    def _note_timing(self, entry: Contenders, reply: Measured) -> None:
        self._timer, self._timer_fallback = reply.timer, reply.timer_fallback
        self._ledger.add(reply.phases_s, reply.first_call_s)
        self._warm_up[entry.case.key] = reply.warm_up
        if reply.timer_fallback:
            self._warnings.append(f"timer {reply.timer} instead of the device's default: {reply.timer_fallback}")
        if reply.cut_short:
            self.warn(f"case {entry.case.key}: the budget ended before every pair was decided")
        if reply.retried_replicates:
            self.warn(f"case {entry.case.key}: {reply.retried_replicates} replicates were repeated because the timer lost records")

    def _measure_without(self, failure: Failure, work: _CaseWork, ready: list[Couple], workers: Workers) -> None:
        """A kernel failed while it was timed: its couple is out, the others are measured without it."""
        arm = ready[0].kernel if failure.kernel == CONTROL else failure.kernel
        culprit = next((couple for couple in ready if couple.kernel == arm.removeprefix(BASE)), None)
        if culprit is None:
            why = f"while {failure.kernel or 'no kernel'} was being timed: {failure.reason}"
            for couple in ready:
                work.note(couple.kernel, new_status=failure.status, reason=why)
            self._measure(work, [], workers)
            return
        timed = f"while it was being timed: {failure.reason}"
        if arm.startswith(BASE):
            work.note(culprit.kernel, old_status=failure.status, reason=f"fails on the other side ({failure.status.value}): {timed}")
        else:
            work.note(culprit.kernel, new_status=failure.status, reason=timed)
        self._measure(work, [couple for couple in ready if couple is not culprit], workers)

    def _show(self, what: str, progress: Progress) -> None:
        self.reporter.step(f"{what}: {progress.text}" if progress.kernel and what == "measure" else what, progress.done, progress.total)
