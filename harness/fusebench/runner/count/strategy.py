"""The strategy of `fusebench ncu`: hardware counters, one Nsight Compute process per kernel and case, into one record."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ...counters.capturing import CaptureOutcome, Settings, capture
from ...counters.records import Capture, CaptureStatus, CounterRun
from ...schema import Case, ExitCode, Language, Role, Status
from ...store.comparison_record import RevisionPresence
from ..ab.revisions import Revisions
from ..case_kernels import AnyKernel, CaseKernels, Kernels, case_kernels
from ..context import Context
from ..engine import Strategy
from .resuming import ResumedCaptures
from .stored import BASE

FAILURES = frozenset({CaptureStatus.FAILED, CaptureStatus.NO_LAUNCH})
"""Statuses that mean exit code 5. A call without a launch is one of them, because every case of a suite has elements to compute."""
_DECLINED = {Status.UNSUPPORTED: CaptureStatus.UNSUPPORTED, Status.NOT_RUNNABLE: CaptureStatus.NOT_RUNNABLE}


class CountingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The selection and the settings of a capture."""

    settings: Settings
    ncu_version: str
    kernel: str | None = None
    """Glob of kernels; without one, `captured_by_default` selects."""
    command: str = ""
    base: str = ""
    """The base in words; empty without a base."""
    sources: str = ""
    """Digest of the kernels folders, for the record."""
    resumed: ResumedCaptures | None = None
    """A stopped run to go on with."""


class Job(msgspec.Struct, frozen=True):
    """One capture that is to be made."""

    unit: CaseKernels
    kernel: AnyKernel
    revision: str = ""


def captured_by_default(kernel: AnyKernel) -> bool:
    """Whether a kernel is captured without being named: the project's own device code, fused or as a chain of launches.

    torch's own operators, kernels made by torch.compile, and other libraries' kernels are captured on request: a user cannot change them.
    """
    return kernel.role in {Role.FUSED, Role.SPLIT} and kernel.language is not Language.TORCH


class CaseCaptures:
    """The captures of one case: each is kept when it is over."""

    def __init__(self, unit: CaseKernels, strategy: CountingStrategy) -> None:
        self._unit, self._strategy = unit, strategy

    def measure(self, seconds: float | None) -> None:
        """Capture every chosen kernel; one that fails leaves the others alone.

        Raises:
            PermissionDeniedError: counters may not be read.
        """
        for job in self._strategy.jobs(self._unit):
            self._strategy.capture(job)


class CountingStrategy(Strategy[Case, CaseKernels, CaseCaptures, CounterRun]):
    """Collects captures, in order."""

    def __init__(
        self,
        context: Context,
        collection: Kernels,
        options: CountingOptions,
        *,
        reports: Path,
        base: Kernels | None = None,
    ) -> None:
        """`reports`: folder for the `.ncu-rep` files; `base`: the kernels of the base revision."""
        self.context, self.options = context, options
        self._collection, self._base, self._reports = collection, base, reports
        self._revisions = Revisions(collection, base) if base is not None else None
        self._id = secrets.token_hex(4)
        self._cases: list[Case] = []
        self._captures: list[Capture] = []
        self._not_loaded = False

    @property
    def begun(self) -> bool:
        return bool(self._captures)

    @property
    def exit_code(self) -> ExitCode:
        """Another library's failure is not this project's."""
        failed = any(one.status in FAILURES and one.role is not Role.PEER for one in self._captures)
        return ExitCode.KERNEL_FAILED if failed or self._not_loaded else ExitCode.PASS

    def prepare(self, items: Sequence[Case]) -> None:
        """Refuse a run to go on with that was made otherwise.

        Raises:
            UsageError: on another machine, of other sources, or with other settings.
        """
        if self.options.resumed is not None:
            self.options.resumed.require_same(self.record(complete=False))
        self._not_loaded = self.context.note_unloaded(self._collection.problems, {case.op for case in items})

    def plan(self, items: Sequence[Case]) -> list[CaseKernels]:
        return [case_kernels(self._collection, case, "cuda", self.options.kernel, with_baseline=False) for case in items]

    def work_on(self, unit: CaseKernels, number: int) -> CaseCaptures:
        self._cases.append(unit.case)
        return CaseCaptures(unit, self)

    def keep(self, unit: CaseKernels, work: CaseCaptures, *, finished: bool) -> None:
        """Every capture was kept when it was over."""

    def record(self, *, complete: bool) -> CounterRun:
        settings, resumed = self.options.settings, self.options.resumed
        return CounterRun(
            id=self._id,
            created=self.context.created_text,
            command=self.options.command,
            ncu_version=self.options.ncu_version,
            metric_set=settings.metric_set,
            metrics=settings.metrics,
            cache_control=settings.cache_control,
            clock_control="none",
            environment=self.context.environment(),
            base=self.options.base,
            sources=self.options.sources,
            resumed_from=(*resumed.run.resumed_from, resumed.run.id) if resumed is not None else (),
            cases=tuple(self._cases),
            captures=tuple(self._captures),
            warnings=tuple(self.context.distinct_warnings),
            complete=complete,
        )

    def jobs(self, unit: CaseKernels) -> list[Job]:
        """The captures of a case, in order; a kernel that is not captured is put on record with its reason."""
        case = unit.case
        for result in unit.declined:
            kernel = self._collection.kernel(result.kernel)
            if self._chosen(kernel):
                self._add(_captured(Job(unit, kernel), CaptureOutcome(status=_DECLINED[result.status], reason=result.reason)))
        jobs = [Job(unit, kernel) for kernel in unit.runnable if self._chosen(kernel)]
        if self._revisions is not None:
            jobs = list(self._with_base(self._revisions, case, jobs))
        if not jobs and not any(one.case == case.name and one.suite == case.suite for one in self._captures):
            self.context.warn(f"case {case.key}: no kernel of {case.op} is captured by default; name some with --kernel")
        return jobs

    def _with_base(self, revisions: Revisions, case: Case, jobs: Sequence[Job]) -> Iterator[Job]:
        """`jobs`, each followed by the base revision's kernel of the same name where that is another."""
        _, pairs = revisions.kernel_pairs(case, "cuda", self.options.kernel)
        by_name = {pair.kernel: pair for pair in pairs}
        for job in jobs:
            yield job
            pair = by_name[str(job.kernel.id)]
            if pair.same_source:
                self.context.warn(f"{pair.kernel} is made of the same files in both revisions, and is captured once")
            elif pair.reason or pair.base is None:
                self.context.warn(f"{pair.kernel} on {case.key} has nothing to be compared with: {pair.reason}")
            else:
                yield Job(job.unit, pair.base, BASE)
        for pair in pairs:
            if pair.presence is RevisionPresence.REMOVED and self._chosen(pair.any_kernel):
                self.context.warn(f"{pair.kernel} is only in the base revision, and is not captured")

    def _chosen(self, kernel: AnyKernel) -> bool:
        return self.options.kernel is not None or captured_by_default(kernel)

    def capture(self, job: Job) -> None:
        """Run one capture and keep it, unless an earlier run had made it."""
        collection = self._base if job.revision == BASE else self._collection
        assert collection is not None
        label = f"{job.kernel.id}{f' ({job.revision})' if job.revision else ''}"
        report = self._reports / report_name(len(self._captures) + 1, job.unit.case, job.kernel, job.revision)
        resumed = self.options.resumed
        if resumed is not None and (found := resumed.taken(job.unit.case, str(job.kernel.id), job.revision, report)) is not None:
            self._add(found)
            return
        began = time.monotonic()
        outcome = capture(
            job.unit.case,
            str(job.kernel.id),
            roots=self._collection.roots,
            kernel_roots=collection.roots,
            settings=self.options.settings,
            report=report,
            excluded=collection.excluded,
            on_step=lambda what: self.context.reporter.step(f"{label}: {what}"),
        )
        self.context.warnings += outcome.warnings
        self._add(_captured(job, outcome, report=report, seconds=time.monotonic() - began))

    def _add(self, one: Capture) -> None:
        self._captures.append(one)
        self.context.reporter.line(describe_capture(one), failed=one.status in FAILURES)


def report_name(number: int, case: Case, kernel: AnyKernel, revision: str) -> str:
    """`03_flux_1024_fused_triton_v2.ncu-rep`: sorts in the order of the captures."""
    name = f"{number:02d}_{case.name}_{kernel.id.name}_v{kernel.id.version}{f'_{revision}' if revision else ''}"
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.ncu-rep"


def describe_capture(one: Capture) -> str:
    """One line: kernel, status, and the captured figures or the reason for their absence."""
    words = [f"{one.kernel}{f' ({one.revision})' if one.revision else ''}", one.status.value]
    if one.launches:
        times = [launch.metrics.get("gpu__time_duration.sum") for launch in one.launches]
        known = [time for time in times if time is not None]
        words.append(f"{len(one.launches)} launch{'es' if len(one.launches) > 1 else ''}")
        words += [f"{sum(known) / 1000:.2f} us"] if len(known) == len(times) else []
    if one.seconds:
        words.append(f"in {one.seconds:.0f} s")
    if one.reason:
        words.append(f"({one.reason})")
    return "  ".join(words)


def _captured(job: Job, outcome: CaptureOutcome, *, report: Path | None = None, seconds: float = 0.0) -> Capture:
    unit = job.unit
    return Capture(
        case=unit.case.name,
        suite=unit.case.suite,
        op=unit.op.name,
        kernel=str(job.kernel.id),
        role=job.kernel.role,
        shape=unit.shape,
        revision=job.revision,
        status=outcome.status,
        reason=outcome.reason,
        minimum_bytes=unit.facts.known("minimum_bytes"),
        launches=outcome.launches,
        report=report.name if report is not None and report.is_file() else "",
        seconds=round(seconds, 1),
    )
