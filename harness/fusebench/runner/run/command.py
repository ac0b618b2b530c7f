"""`fusebench run` from its request to a stored record. The baseline is loaded once, before any measurement, and the run is judged once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...config import Project
from ...errors import RecordNotWrittenError, RunRecordError
from ...naming import device_slug
from ...schema import Case, Run, SamplingPlan
from ...store.baselines import baseline_folder
from ...store.calibration_note import load_note, warnings_of_note
from ...store.files import require_writable
from ...store.finding import find_run, parent_of_record
from ...store.journal import Journal, write_whole
from ...store.run_folder import read_run, sample_values, seal_of
from ...store.seal import altered_words
from ...verdict.baseline.compare_to_baseline import with_verdicts
from ...verdict.margins.rule import MarginRule
from ...verdict.record_validation import load_valid_baseline, valid_baseline
from ..case_kernels import Kernels
from ..context import MeasuringContext, Reporter
from ..engine import Engine
from ..evidence.providers import EvidenceTools, MeasuredKernels, providers_of_run
from ..evidence.regressions import any_regressed, explained_run
from ..session import Interruption, MeasuringRequest, Outcome, attempt, ended_by, hold, ops_of, signals_held
from ..workers.pool import WorkerPool
from .options import RunOptions
from .reckoning import Reckoning, measured_before, reckon
from .resuming import Resumed
from .strategy import RunStrategy

MOST_AHEAD = 0.5
"""Part of a budget after which no further case is checked ahead: compilers without their caches may take several times as long."""


class RunRequest(MeasuringRequest, frozen=True, kw_only=True):
    """The selection and the settings of a run."""

    project: Project
    collection: Kernels
    cases: Sequence[Case]
    options: RunOptions
    plan: SamplingPlan
    rule: MarginRule
    out: Path | None = None
    """Folder for the run's folder; where None, that of the run to resume, or results/runs of the project."""
    resume: str | None = None
    """A stopped run to resume: a folder, a run id or `latest`."""
    baseline: str | None = None
    """The run to judge by: a folder, a run id or `latest`; the stored baseline of the device model where None."""
    confirm: bool = True
    """Whether suspects are remeasured in fresh processes."""
    evidence: EvidenceTools | None = None
    """How evidence about regressions is shown; None leaves it out."""
    boards: int = 1
    """Boards that measure at once."""
    reckoning: Reckoning | None = None
    """The seconds that the run is expected to take; `measure_run` makes it where there is a budget."""


class Session(Protocol):
    """Opens the devices of a run: a context manager that yields the strategy, and warnings about the devices."""

    def __call__(
        self, request: RunRequest, reporter: Reporter, options: RunOptions, *, baseline: Run | None, journal: Journal
    ) -> AbstractContextManager[tuple[RunStrategy, list[str]]]: ...


@contextmanager
def on_one_device(
    request: RunRequest, reporter: Reporter, options: RunOptions, *, baseline: Run | None, journal: Journal
) -> Iterator[tuple[RunStrategy, list[str]]]:
    """The session on `request.device`."""
    device = request.device
    with (
        hold(device, reporter, wait_s=request.wait_s) as warnings,
        WorkerPool(
            device,
            request.collection.roots,
            request.silence_s,
            ops=ops_of(request.cases),
            timer=request.timer,
            excluded=request.collection.excluded,
        ) as pool,
    ):
        spent = options.resumed.run.spending if options.resumed is not None else None
        context = MeasuringContext(device, request.project.root, reporter, pool=pool, plan=request.plan, spent=spent)
        strategy = RunStrategy(
            context,
            request.collection,
            options,
            rule=request.rule,
            baseline=baseline,
            confirm=request.confirm,
            ahead=checks_ahead(request),
            ahead_s=request.budget_s * MOST_AHEAD if request.budget_s is not None else None,
            reckoning=request.reckoning,
            journal=journal,
        )
        yield strategy, warnings


def checks_ahead(request: RunRequest) -> bool:
    """Whether several processes check before the first case: not where a budget is too small, and a resumed run has compiled most."""
    budget, reckoning = request.budget_s, request.reckoning
    whole = budget is None or (reckoning is not None and reckoning.fits(budget))
    return request.device.kind == "cuda" and whole and request.resume is None


def with_reckoning(request: RunRequest, options: RunOptions, runs: Path, baseline: Run | None) -> RunRequest:
    """The request with the seconds that its cases take; unchanged without a budget, or where nothing is known of a CPU."""
    if request.budget_s is None:
        return request
    known = measured_before(runs, request.device.name, baseline)
    if known is None and request.device.kind == "cpu":
        return request
    before = {one.case.key for one in options.resumed.run.cases} if options.resumed is not None else set()
    cases = [case for case in request.cases if case.key not in before]
    return msgspec.structs.replace(request, reckoning=reckon(cases, request.collection, known, request.plan, boards=request.boards))


def _words_of_budget(request: RunRequest, reporter: Reporter) -> list[str]:
    """The warning about a budget that does not suffice; one that does is noted, and not kept."""
    budget, reckoning = request.budget_s, request.reckoning
    if budget is None or reckoning is None or not reckoning.cases:
        return []
    if not reckoning.fits(budget):
        return [reckoning.shortage(budget, request.plan)]
    reporter.note(f"expected are {reckoning.total_s:.0f} s of the budget of {budget:g} s ({reckoning.source}), which is a deadline")
    return []


def measure_run(request: RunRequest, reporter: Reporter, session: Session = on_one_device) -> Outcome[Run]:
    """Check and measure every case, remeasure suspects, judge, and write the run. An interrupted run is written with its finished cases.

    Each finished case is in a journal on disk before the next begins. The journal stays where the record cannot be written.

    Raises:
        RecordNotWrittenError: nothing can be written at the start.
        UsageError: nothing of the run to resume is left to do, or it is unknown, the baseline is unknown, or the folder takes no run.
        RunRecordError: the baseline or the stored calibration cannot be read, or holds impossible figures.
        DeviceUnfitError: the device is locked or busy.
    """
    project, device = request.project, request.device
    options = request.options
    stopped = find_run(request.resume, project) if request.resume is not None else None
    if stopped is not None:
        options = msgspec.structs.replace(options, resumed=Resumed(read_run(stopped), sample_values(stopped)))
    journal = Journal(parent_of_record(request.out, stopped, project))
    require_writable(journal.parent, instead="name another with --out DIR")
    # Unreadable records are found before any measurement, which could otherwise not be judged and kept.
    note = load_note(project.results, device.name)
    if request.baseline is not None:
        where = find_run(request.baseline, project)
        baseline: Run | None = valid_baseline(where)
    else:
        where = baseline_folder(project.results, device_slug(device.name))
        baseline = load_valid_baseline(project.results, device.name)
    altered = seal_of(where).altered if baseline is not None else ""
    if options.resumed is not None:
        options.resumed.require_unfinished(baseline if request.confirm else None, request.rule)
    request = with_reckoning(request, options, journal.parent, baseline)
    engine: Engine[Any, Any, Any, Run] | None = None
    judged: Run | None = None
    try:
        with session(request, reporter, options, baseline=baseline, journal=journal) as (strategy, warnings):
            engine = Engine(strategy, request.budget_s if strategy.engine_keeps_budget else None)
            told = [altered_words("the baseline", altered, where)] if altered else []
            told += _words_of_budget(request, reporter)
            interruption = attempt(engine, request.cases, [*warnings, *told, *warnings_of_note(project.results, device.name)])
        if interruption is None:
            record = engine.record()
            judged = with_verdicts(msgspec.structs.replace(record, calibration=note), strategy.judge(record))
            if request.evidence is not None and baseline is not None and any_regressed(judged):
                measured = MeasuredKernels(request.collection, device, request.plan.cache, request.silence_s)
                judged = explained_run(judged, providers_of_run(project, measured, baseline, request.evidence))
    except (KeyboardInterrupt, Exception) as error:  # kept without verdicts before it is raised again
        if engine is None:
            raise
        interruption, judged = error, None
    return _kept(engine, journal, judged, interruption)


def _kept(engine: Engine[Any, Any, Any, Run], journal: Journal, judged: Run | None, interruption: Interruption | None) -> Outcome[Run]:
    """The outcome, after its record is written in place of the journal. A second Ctrl-C waits for the end of this."""
    with signals_held() as received:
        record = judged if judged is not None else engine.record()
        if interruption is not None:
            record = ended_by(record, interruption)
        folder = None
        if engine.begun or judged is not None:
            try:
                folder = write_whole(journal.parent, record, engine.samples)
            except (OSError, RunRecordError) as error:
                journal.close()
                return Outcome(record=record, interruption=RecordNotWrittenError(journal.not_written(error)))
        journal.remove()
    if received and interruption is None:
        interruption = KeyboardInterrupt()
    return Outcome(
        record=record,
        folder=folder,
        interruption=interruption,
        kept=f"what was measured is kept, {'without verdicts' if record.complete else 'marked incomplete'}"
        if judged is None
        else "the whole record is kept",
    )
