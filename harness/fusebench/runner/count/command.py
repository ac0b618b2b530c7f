"""`fusebench ncu` from its request to a stored record."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ...config import Project
from ...counters.capturing import listed_metrics, settings_for
from ...counters.metric_sets import require_known
from ...counters.records import CounterRun
from ...faults import what_ended
from ...registry.sources import roots_digest
from ...schema import CacheState, Case, ExitCode, KernelId
from ...store.counter_folder import keep_counters
from ...store.finding import parent_of_record
from ..ab.command import declared_base
from ..case_kernels import Kernels
from ..context import Context, Reporter
from ..engine import Engine
from ..evidence.base_checkout import BaseChoice, name_of
from ..session import Outcome, attempt, signals_held
from .device import FitDevice, hold_for_counters
from .resuming import resumed_captures
from .stored import beside
from .strategy import CountingOptions, CountingStrategy


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The selection and the settings of a capture."""

    project: Project
    collection: Kernels
    cases: Sequence[Case]
    fit: FitDevice
    kernel: str | None = None
    """Glob of kernels."""
    exact_kernel: KernelId | None = None
    """The one kernel that `kernel` names in full, if it does: of the base, no other is then loaded."""
    base: BaseChoice | None = None
    earlier: CounterRun | None = None
    """A stored run to put beside this one."""
    metric_set: str
    metrics: tuple[str, ...]
    named: bool = False
    """Whether `metrics` were named one by one, so that one may not exist."""
    cache: CacheState
    silence_s: float
    wait_s: float = 0.0
    out: Path | None = None
    resume: str | None = None
    """A stopped run to go on with: a folder, an id or `latest`."""
    command: str = ""


class CountOutcome(Outcome[CounterRun], frozen=True, kw_only=True):
    """A run of captures with its exit code, which its record does not hold."""

    exit_code: ExitCode


def measure_counters(request: CountRequest, reporter: Reporter) -> CountOutcome:
    """Capture every chosen kernel of every case, and write the run; an interrupted one as far as it came.

    Raises:
        UsageError: no base revision, or a metric that Nsight Compute does not know.
        DeviceUnfitError: the device is locked or busy.
    """
    project, device = request.project, request.fit.device
    settings = settings_for(
        device, request.fit.probe, metric_set=request.metric_set, metrics=request.metrics, cache=request.cache, silence_s=request.silence_s
    )
    resumed = resumed_captures(request.resume, project) if request.resume is not None else None
    parent = parent_of_record(request.out, resumed.folder if resumed is not None else None, project)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebench-ncu-")))
        base, name, roots = _base(request, scratch / "base", reporter)
        warnings = stack.enter_context(hold_for_counters(request.fit, reporter, wait_s=request.wait_s))
        if request.named:
            require_known(settings.metrics, listed_metrics(settings))
        options = CountingOptions(
            settings=settings,
            ncu_version=request.fit.probe.version,
            kernel=request.kernel,
            command=request.command,
            base=name,
            sources=roots_digest((*request.collection.roots, *roots)),
            resumed=resumed,
        )
        context = Context(device, project.root, reporter)
        strategy = CountingStrategy(context, request.collection, options, reports=scratch, base=base)
        engine = Engine(strategy, on_unit=lambda: _keep(parent, strategy, scratch))
        interruption = attempt(engine, request.cases, warnings)
        record = engine.record() if request.earlier is None else beside(engine.record(), request.earlier)
        if interruption is not None and (ended := what_ended(interruption)):
            record = msgspec.structs.replace(record, warnings=(*record.warnings, ended[1]))
        with signals_held() as received:
            folder = keep_counters(parent, record, scratch) if interruption is None or engine.begun else None
        if received and interruption is None:
            interruption = KeyboardInterrupt()
    return CountOutcome(
        record=record,
        folder=folder,
        interruption=interruption,
        kept="what was captured is kept, marked incomplete",
        exit_code=strategy.exit_code,
    )


def _keep(parent: Path, strategy: CountingStrategy, reports: Path) -> None:
    """Have the captures of the finished cases on disk before the next one begins."""
    if strategy.begun:
        keep_counters(parent, strategy.record(complete=False), reports)


def _base(request: CountRequest, scratch: Path, reporter: Reporter) -> tuple[Kernels | None, str, Sequence[Path]]:
    """The base's kernels, its description and its kernels folders; None and nothing without a base."""
    if request.base is None:
        return None, "", ()
    base, roots = request.base.resolve(request.project, request.collection.roots, scratch)
    for note in base.notes:
        reporter.note(note)
    return declared_base(roots, request.cases, request.exact_kernel), name_of(base, "folder "), roots
