"""`fusebench ab` from its request to a stored record: find the base revision, compare, judge, attach evidence, write."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ...config import Project
from ...registry import Declarations
from ...registry.sources import changed_files, definition_digests, root_differences, roots_digest
from ...schema import Case, KernelId, SamplingPlan
from ...store.calibration_note import load_note, warnings_of_note
from ...store.comparison_folder import keep_comparison, read_comparison, read_comparison_samples, seal_of_comparison
from ...store.comparison_record import BaseRevision, Comparison
from ...store.files import require_writable
from ...store.finding import COMPARISON_FILE, find_run, parent_of_record
from ..case_kernels import Kernels
from ..context import MeasuringContext, Reporter
from ..engine import Engine
from ..evidence.base_checkout import BaseChoice, name_of
from ..evidence.providers import THIS_CHECKOUT, EvidenceTools, MeasuredKernels, providers_between
from ..evidence.regressions import compiled_kernels, explained_comparison
from ..resuming import require_unaltered
from ..session import Interruption, MeasuringRequest, Outcome, attempt, ended_by, hold, ops_of, signals_held
from ..workers.pool import WorkerPool
from .case_comparison import CaseComparison
from .resuming import ResumedComparison
from .revisions import Revisions, changed_definition
from .strategy import ComparisonOptions, ComparisonStrategy, PairedCase


class ComparisonRequest(MeasuringRequest, frozen=True, kw_only=True):
    """What to compare, and how."""

    project: Project
    collection: Kernels
    """Head's kernels."""
    cases: Sequence[Case]
    base: BaseChoice
    options: ComparisonOptions
    plan: SamplingPlan
    out: Path | None = None
    """Folder for the comparison's folder; where None, that of the comparison to go on with, or results/runs of the project."""
    resume: str | None = None
    """A stopped comparison to go on with: a folder, an id or `latest`."""
    evidence: EvidenceTools | None = None
    """How evidence about regressions is shown; None leaves it out."""
    head_commit: str = ""
    """The commit whose kernels `collection` holds; empty for this checkout."""


class IdenticalSource(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to compare: every file of the kernels folders is the same in both revisions.

    Suites, options and the measuring code are head's for both revisions, so that they never differ.
    """

    base: BaseRevision


def measure_comparison(request: ComparisonRequest, reporter: Reporter) -> Outcome[Comparison] | IdenticalSource:
    """Compare every case, judge, and write the comparison. An interrupted comparison is written with its finished cases.

    Without anything to compare nothing is measured and nothing is written, unless every kernel of identical code is to be timed, or a
    kernel file of head does not load.

    Raises:
        UsageError: no base revision, or the folder takes no record.
        RunRecordError: the stored calibration cannot be read.
        DeviceUnfitError: the device is locked or busy.
    """
    project, device, collection = request.project, request.device, request.collection
    resumed = resumed_comparison(request.resume, project) if request.resume is not None else None
    parent = parent_of_record(request.out, resumed.folder if resumed is not None else None, project)
    require_writable(parent, instead="name another with --out DIR")
    note = load_note(project.results, device.name)  # one that cannot be read is found before anything is measured
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebench-ab-")))
        base, roots = request.base.resolve(project, collection.roots, scratch)
        for text in base.notes:
            reporter.note(text)
        broken = {problem.op for problem in collection.problems} & ops_of(request.cases)
        if not request.options.time_identical and not broken and root_differences(collection.roots, roots).none:
            return IdenticalSource(base=base)
        # The device is held while it measures: compiling evidence needs none, and counters take it again.
        asked = time.monotonic()
        with hold(device, reporter, wait_s=request.wait_s) as warnings:
            waited_s = time.monotonic() - asked
            reporter.note(f"loading the kernels of {name_of(base, 'folder ')}")
            base_kernels = declared_base(roots, request.cases)
            revisions = Revisions(collection, base_kernels)
            with WorkerPool(
                device,
                collection.roots,
                request.silence_s,
                base_roots=roots,
                ops=ops_of(request.cases),
                timer=request.timer,
                excluded={**collection.excluded, **base_kernels.excluded},
            ) as pool:
                spent = resumed.record.spending if resumed is not None else None
                context = MeasuringContext(device, project.root, reporter, pool=pool, plan=request.plan, spent=spent)
                if request.head_commit:
                    context.environment_at_start = msgspec.structs.replace(
                        context.environment_at_start, git_commit=request.head_commit, git_dirty=False
                    )
                for op in sorted(ops_of(request.cases)):
                    if changed := changed_files(definition_digests(op, collection.roots), definition_digests(op, roots)):
                        context.warn(changed_definition(op, changed))
                sources = roots_digest((*collection.roots, *roots))
                options = msgspec.structs.replace(request.options, sources=sources, resumed=resumed)
                strategy = ComparisonStrategy(context, revisions, base, options)
                engine = Engine(strategy, request.budget_s, on_unit=lambda: _keep(parent, strategy))
                interruption = attempt(engine, request.cases, [*warnings, *warnings_of_note(project.results, device.name)])
        record, interruption = _recorded(engine, strategy, interruption)
        record = msgspec.structs.replace(record, calibration=note, waited_s=waited_s)
        if interruption is None and request.evidence is not None:
            measured = MeasuredKernels(collection, device, request.plan.cache, request.silence_s)
            head = f"commit {request.head_commit[:12]}" if request.head_commit else THIS_CHECKOUT
            providers = providers_between(measured, roots, name_of(base), request.evidence, head=head)
            try:
                record = explained_comparison(record, compiled_kernels([kernel.info for kernel in collection.kernels.values()]), providers)
            except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  kept before it is raised again
                interruption = error
    with signals_held() as received:
        record = record if interruption is None else ended_by(record, interruption)
        folder = keep_comparison(parent, record, engine.samples) if interruption is None or engine.begun else None
    if interruption is None and not received:
        return Outcome(record=record, folder=folder)
    interruption = interruption or KeyboardInterrupt()
    kept = f"what was compared is kept, {'without what was to follow' if record.complete else 'marked incomplete'}"
    return Outcome(record=record, folder=folder, interruption=interruption, kept=kept)


def resumed_comparison(text: str, project: Project) -> ResumedComparison:
    """The stopped comparison that `text` names.

    Raises:
        UsageError: it is complete, or unknown.
        RunRecordError: it cannot be read, or does not fit its seal.
    """
    folder = find_run(text, project, records=(COMPARISON_FILE,), made_by="fusebench ab")
    record = read_comparison(folder)
    require_unaltered(f"comparison {record.id}", seal_of_comparison(folder), folder)
    return ResumedComparison(record, read_comparison_samples(folder), folder)


def declared_base(roots: Sequence[Path], cases: Sequence[Case], kernel: KernelId | None = None) -> Declarations:
    """The kernels of the base revision, with all that they say of the cases.

    Args:
        kernel: the one kernel to load; None for all.
    """
    declared = Declarations(roots)
    try:
        if kernel is None:
            declared.load_kernels()
        else:
            declared.load_kernels(only=ops_of(cases), kernel=kernel, operators=False)
        declared.learn(cases)
    finally:
        declared.close()
    return declared


def _keep(parent: Path, strategy: ComparisonStrategy) -> None:
    """Have the finished cases on disk before the next one begins; each verdict may change with the cases that follow."""
    if strategy.begun:
        keep_comparison(parent, strategy.record(complete=False, judge=False), strategy.samples)


def _recorded(
    engine: Engine[Case, PairedCase, CaseComparison, Comparison], strategy: ComparisonStrategy, interruption: Interruption | None
) -> tuple[Comparison, Interruption | None]:
    """The record and what ended the comparison early, which may be the judging itself: the record is then without verdicts."""
    try:
        return engine.record(), interruption
    except Exception as error:  # noqa: BLE001  raised again when what was compared is kept
        return strategy.record(complete=engine.complete, judge=False), interruption or error
