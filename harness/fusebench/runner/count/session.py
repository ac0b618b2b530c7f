"""Hardware counters of chosen kernels and cases: one Nsight Compute process per kernel and case, into one record."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ...counters.capturing import Outcome, Settings, capture
from ...counters.records import Capture, CaptureStatus, CounterRun
from ...device import Device, environment_of
from ...registry import Collection, Kernel
from ...schema import Case, ExitCode, Language, Role, Status
from ...store.comparison_record import Standing
from ..ab.revisions import Revisions
from ..case_kernels import CaseKernels, case_kernels
from ..reporter import Reporter
from .stored import BASE_SIDE

FAILURES = frozenset({CaptureStatus.FAILED, CaptureStatus.NO_LAUNCH})
"""What makes exit code 5.  A call that launches nothing is among them: every case of a suite has elements to compute."""
_DECLINED = {Status.UNSUPPORTED: CaptureStatus.UNSUPPORTED, Status.NOT_RUNNABLE: CaptureStatus.NOT_RUNNABLE}


class CountingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to capture, and how."""

    settings: Settings
    ncu_version: str
    kernel: str | None = None
    """Glob of kernels; without one, `captured_by_default` decides."""
    command: str = ""
    base: str = ""
    """What the other side is, in words; empty without one."""


class _Job(msgspec.Struct, frozen=True):
    """One capture that is to be made."""

    entry: CaseKernels
    kernel: Kernel
    side: str = ""


def captured_by_default(kernel: Kernel) -> bool:
    """Whether a kernel is captured without being named: the project's own device code, fused or as a chain of launches.

    torch's own operators, what torch.compile makes, and other libraries' kernels are captured on request: nobody here can change them.
    """
    return kernel.role in {Role.FUSED, Role.SPLIT} and kernel.language is not Language.TORCH


class CountingSession:
    """Collects captures; `record` may be taken at any time, also after an interruption."""

    def __init__(
        self,
        collection: Collection,
        device: Device,
        project_root: Path,
        options: CountingOptions,
        reporter: Reporter,
        *,
        reports: Path,
        base: Collection | None = None,
    ) -> None:
        """`reports`: folder for the `.ncu-rep` files; `base`: the other side's kernels."""
        self.options = options
        self.reporter = reporter
        self._collection, self._base, self._reports = collection, base, reports
        self._sides = Revisions(collection, base) if base is not None else None
        self._environment = environment_of(device, project_root)
        self._created = datetime.now(UTC)
        self._id = secrets.token_hex(4)
        self._cases: list[Case] = []
        self._captures: list[Capture] = []
        self._warnings: list[str] = []
        self._complete = False
        self._not_loaded = False

    @property
    def begun(self) -> bool:
        """Whether there is anything to keep."""
        return bool(self._captures)

    @property
    def exit_code(self) -> ExitCode:
        """Another library's failure is not this project's."""
        failed = any(one.status in FAILURES and one.role is not Role.PEER for one in self._captures)
        return ExitCode.KERNEL_FAILED if failed or self._not_loaded else ExitCode.PASS

    def run(self, cases: Sequence[Case]) -> None:
        """Capture every chosen kernel of every case; one that fails leaves the others alone.

        Raises:
            PermissionDeniedError: counters may not be read.
        """
        self._note_problems(cases)
        self.reporter.begin(len(cases))
        try:
            for number, case in enumerate(cases):
                self._cases.append(case)
                entry, jobs = self._plan(case)
                self.reporter.case(number + 1, len(cases), case, entry.shape)
                for job in jobs:
                    self._capture(job)
            self._complete = True
        finally:
            self.reporter.end()

    def record(self) -> CounterRun:
        """The run as it stands."""
        settings = self.options.settings
        return CounterRun(
            id=self._id,
            created=self._created.isoformat(timespec="seconds"),
            command=self.options.command,
            ncu_version=self.options.ncu_version,
            metric_set=settings.metric_set,
            metrics=settings.metrics,
            cache_control=settings.cache_control,
            clock_control="none",
            environment=self._environment,
            base=self.options.base,
            cases=tuple(self._cases),
            captures=tuple(self._captures),
            warnings=tuple(dict.fromkeys(self._warnings)),
            complete=self._complete,
        )

    def warn(self, text: str) -> None:
        """Keep a warning for the record and say it now."""
        self._warnings.append(text)
        self.reporter.note(text)

    def _note_problems(self, cases: Sequence[Case]) -> None:
        ops = {case.op for case in cases}
        for problem in self._collection.problems:
            if problem.op in ops:
                self._warnings.append(f"not loaded: {problem}")
                self._not_loaded = True

    def _plan(self, case: Case) -> tuple[CaseKernels, list[_Job]]:
        """The captures of a case, in order; what is not captured is put on record with its reason."""
        entry = case_kernels(self._collection, case, "cuda", self.options.kernel, with_baseline=False)
        chosen = [kernel for kernel in entry.runnable if self._chosen(kernel)]
        for result in entry.declined:
            kernel = self._collection.kernel(result.kernel)
            if self._chosen(kernel):
                self._add(_captured(_Job(entry, kernel), Outcome(status=_DECLINED[result.status], reason=result.reason)))
        jobs = [_Job(entry, kernel) for kernel in chosen]
        if self._sides is not None:
            jobs = list(self._with_base(case, jobs))
        if not jobs and not any(one.case == case.name and one.suite == case.suite for one in self._captures):
            self.warn(f"case {case.key}: no kernel of {case.op} is captured by default; name some with --kernel")
        return entry, jobs

    def _with_base(self, case: Case, jobs: Sequence[_Job]) -> Iterator[_Job]:
        """`jobs`, each followed by the other side's kernel of the same name where that is another."""
        assert self._sides is not None
        _, kernel_pairs = self._sides.kernel_pairs(case, "cuda", self.options.kernel)
        by_name = {kernel_pair.kernel: kernel_pair for kernel_pair in kernel_pairs}
        for job in jobs:
            yield job
            kernel_pair = by_name[str(job.kernel.id)]
            if kernel_pair.same_source:
                self.warn(f"{kernel_pair.kernel} is made of the same files on both sides, and is captured once")
            elif kernel_pair.reason or kernel_pair.old is None:
                self.warn(f"{kernel_pair.kernel} on {case.key} has nothing to be compared with: {kernel_pair.reason}")
            else:
                yield _Job(job.entry, kernel_pair.old, BASE_SIDE)
        for kernel_pair in kernel_pairs:
            if kernel_pair.standing is Standing.REMOVED and self._chosen(kernel_pair.kernel_or_other):
                self.warn(f"{kernel_pair.kernel} is only on the other side, and is not captured")

    def _chosen(self, kernel: Kernel) -> bool:
        return self.options.kernel is not None or captured_by_default(kernel)

    def _capture(self, job: _Job) -> None:
        side = self._base if job.side == BASE_SIDE else self._collection
        assert side is not None
        label = f"{job.kernel.id}{f' ({job.side})' if job.side else ''}"
        report = self._reports / report_name(len(self._captures) + 1, job.entry.case, job.kernel, job.side)
        began = time.monotonic()
        outcome = capture(
            job.entry.case,
            str(job.kernel.id),
            roots=self._collection.roots,
            kernel_roots=side.roots,
            settings=self.options.settings,
            report=report,
            on_step=lambda what: self.reporter.step(f"{label}: {what}"),
        )
        self._warnings += outcome.warnings
        self._add(_captured(job, outcome, report=report, seconds=time.monotonic() - began))

    def _add(self, one: Capture) -> None:
        self._captures.append(one)
        self.reporter.line(describe_capture(one), failed=one.status in FAILURES)


def report_name(number: int, case: Case, kernel: Kernel, side: str) -> str:
    """`03_flux_1024_fused_triton_v2.ncu-rep`: sorts in the order of the captures."""
    name = f"{number:02d}_{case.name}_{kernel.id.name}_v{kernel.id.version}{f'_{side}' if side else ''}"
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.ncu-rep"


def describe_capture(one: Capture) -> str:
    """One line: kernel, status, what was seen of it or why not."""
    words = [f"{one.kernel}{f' ({one.side})' if one.side else ''}", one.status.value]
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


def _captured(job: _Job, outcome: Outcome, *, report: Path | None = None, seconds: float = 0.0) -> Capture:
    entry = job.entry
    return Capture(
        case=entry.case.name,
        suite=entry.case.suite,
        op=entry.op.name,
        kernel=str(job.kernel.id),
        role=job.kernel.role,
        shape=entry.shape,
        side=job.side,
        status=outcome.status,
        reason=outcome.reason,
        minimum_bytes=entry.op.minimum_bytes(entry.params),
        launches=outcome.launches,
        report=report.name if report is not None and report.is_file() else "",
        seconds=round(seconds, 1),
    )
