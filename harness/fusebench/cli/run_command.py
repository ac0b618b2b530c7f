"""`fusebench run`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ..errors import UsageError
from ..schema import CacheState, ExitCode
from .shared.measuring_options import (
    BaselineOption,
    BudgetOption,
    CacheOption,
    ConfirmOption,
    MarginOption,
    OnOption,
    OutOption,
    PrecisionOption,
    ProcessesOption,
    ReplicatesOption,
    ResumeOption,
    RoundsOption,
    ShardOption,
    ShardsOption,
    TimerOption,
    WaitOption,
)
from .shared.options import (
    BoardsOption,
    CaseOption,
    EvidenceOption,
    JsonOption,
    KernelOption,
    KernelsOption,
    OpOption,
    SuiteOption,
    TimeoutOption,
)
from .shared.output import command_line, remark, say_what_is_kept
from .shared.results import ResultsOption, open_results

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..config import Project
    from ..device import Device
    from ..runner.run.command import RunRequest
    from ..runner.session import Outcome
    from ..schema import Run, SamplingPlan
    from .shared.results import Results
    from .shared.selection import Selection


def run(
    context: typer.Context,
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: BoardsOption = "auto",
    kernels: KernelsOption = None,
    out: OutOption = None,
    budget: BudgetOption = None,
    wait: WaitOption = 0.0,
    cache: CacheOption = CacheState.COLD,
    timer: TimerOption = "auto",
    replicates: ReplicatesOption = None,
    rounds: RoundsOption = None,
    precision: PrecisionOption = None,
    processes: ProcessesOption = None,
    resume: ResumeOption = None,
    shard: ShardOption = None,
    on: OnOption = None,
    shards: ShardsOption = None,
    baseline: BaselineOption = None,
    margin: MarginOption = None,
    confirm: ConfirmOption = True,
    evidence: EvidenceOption = True,
    results: ResultsOption = None,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Check kernels, time the correct ones, and write one immutable run.

    Every case goes through the accuracy gate first; a kernel that is wrong is never timed.  Kernels are timed in paired rounds against
    the split chain, a copy of the same bytes and a second copy of the baseline, on several random placements of all buffers.  The run's
    folder holds run.json, samples.parquet, report.md and speedup.png.

    Where a baseline is stored for the device, every kernel is judged against it.  Suspects, cases that one process finds slower or cannot
    decide, are remeasured in fresh processes first (--no-confirm leaves that out).

    A kernel that regressed against the stored baseline is compiled at the baseline's commit and at the current one, and the report shows
    the changes.  If Nsight Compute can read hardware counters, it also shows those of the first four (--no-evidence leaves both out).
    """
    from ..config import find_project
    from ..device.toolchain import require_torch_for
    from ..fleet.planning import parse_shard
    from ..store.files import require_writable
    from ..timing.timers.select import require_timer
    from .shared.selection import resolve_selection, with_kernels

    if shards is not None and on is None:
        raise UsageError("--shards belongs to --on; without an engine, measure one part with --shard I/N")
    # Everything that the command line can have wrong comes before the kernels and the engine, whose imports take seconds.
    require_timer(timer)
    part = parse_shard(shard) if shard is not None else None
    opened = open_results(results, find_project(), new=True)
    resume, stopped = _stopped(resume, opened.own) if resume is not None else (None, None)
    if stopped is not None and not (suite or op or kernel or case):
        suite, op, kernel, case = selection_of(stopped)
        part = parse_shard(stopped.shard) if stopped.shard and part is None else part
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, load_kernels=False)
    suites = tuple(one.name for one in selection.suites)
    if stopped is not None:
        require_same_selection(stopped, suites, op, kernel, case, shard=str(part or ""))
    if on is not None:
        _run_on_engine(context, opened, selection, on, shards=shards, baseline=baseline, margin=margin, out=out)
    boards = _boards(device, stopped)
    target = boards[0]
    require_timer(timer, target.kind)
    require_torch_for(target)
    if out is not None:
        require_writable(out, instead="name another with --out DIR")
    baseline = opened.prepare(target.name, baseline)
    if target.kind == "cpu" and "smoke" not in suites and any(selection.project.is_shipped(Path(one.path)) for one in selection.suites):
        remark("note", "these cases are sized for a GPU and take minutes each on a CPU; `fusebench run --suite smoke` has small ones")

    if precision is not None and processes is not None:
        raise UsageError("--precision chooses the number of processes by itself; leave out --processes or --precision")

    from ..fleet.planning import cases_of_shard
    from ..runner.run.command import RunRequest
    from ..runner.run.options import RunOptions
    from ..store.baselines import load_baseline
    from ..store.finding import parent_of_record
    from ..store.scatter_file import load_scatter
    from ..verdict.margins.rule import MarginRule
    from .shared.evidence_work import evidence_tools

    selection = with_kernels(selection, silence_s=kernel_timeout)
    changes = {"replicates": replicates, "rounds": rounds, "precision": precision, "processes": processes}
    stored = load_baseline(opened.project.results, target.name) if part is not None else None
    cases = cases_of_shard(part, selection.cases, selection.collection, stored) if part is not None else selection.cases
    request = RunRequest(
        project=opened.project,
        collection=selection.collection,
        cases=cases,
        device=target,
        timer=timer,
        plan=_sampling_plan(target.kind, cache, stopped, changes),
        options=RunOptions(kernel=kernel, command=command_line(), selected=suites, op=op, case=case, shard=str(part or "")),
        rule=MarginRule(margin, scatter=load_scatter(opened.project.results, target.name), device=target.kind),
        budget_s=budget,
        wait_s=wait,
        silence_s=kernel_timeout,
        out=parent_of_record(out, Path(resume) if resume is not None else None, opened.own),
        resume=resume,
        baseline=baseline,
        confirm=confirm,
        evidence=evidence_tools() if evidence else None,
        boards=len(boards),
    )
    outcome, said = _measured(request, boards, opened.own)
    show_run(outcome, json=json, said=said)
    opened.publish(outcome.folder)
    raise typer.Exit(ExitCode(outcome.record.exit_code))


def _sampling_plan(kind: str, cache: CacheState, stopped: Run | None, changes: Mapping[str, float | None]) -> SamplingPlan:
    """The plan of the device, or of the stopped run, with what the command line says."""
    import msgspec

    from ..runner.run.options import default_plan

    plan = default_plan(kind, cache) if stopped is None or cache is not CacheState.COLD else stopped.plan
    return msgspec.structs.replace(plan, **{name: value for name, value in changes.items() if value is not None})


def _run_on_engine(
    context: typer.Context,
    opened: Results,
    selection: Selection,
    on: str,
    *,
    shards: int | None,
    baseline: str | None,
    margin: float | None,
    out: Path | None,
) -> NoReturn:
    """Measure every shard on an engine, join them, show and publish the whole, and end the command."""
    from .shared.engine_work import measure_on_engine
    from .shared.selection import with_kernels

    if selection.kernel is not None:
        with_kernels(selection)  # a shard would refuse the name after its time in a queue
    outcome = measure_on_engine(context, opened, on, shards=shards, baseline=baseline, margin=margin, out=out)
    show_run(outcome, json=context.params["json"], resumable=False)
    opened.publish(outcome.folder)
    raise typer.Exit(ExitCode(outcome.record.exit_code))


def _measured(request: RunRequest, boards: Sequence[Device], own: Project) -> tuple[Outcome[Run], Collection[str]]:
    """The run on one board, or on several at once, and the warnings that stand on the screen; how boards disturb each other is kept in the
    results of `own`."""
    from ..runner.run.command import measure_run
    from .shared.progress import make_reporter

    reporter = make_reporter()
    if len(boards) == 1:
        return measure_run(request, reporter), reporter.opening
    from ..fleet.interference import load_interference
    from ..fleet.strategy import on_boards
    from ..runner.run.reckoning import newest_run
    from ..store.finding import runs_folder

    known = newest_run(request.out or runs_folder(request.project), request.device.name)
    interference = load_interference(own.results, request.device.name)
    if interference is None:
        remark("note", "whether these boards disturb each other is not known; measure it with `fusebench calibrate --device all`")
    most = interference.most_at_once(len(boards)) if interference is not None else None
    return measure_run(request, reporter, on_boards(boards, most_at_once=most, planned_by=known)), reporter.opening


def _boards(device: str, stopped: Run | None) -> tuple[Device, ...]:
    """The boards of `--device`; a run on several GPUs goes on with all, unless told otherwise."""
    from ..device import resolve_device
    from ..device.boards import ALL, names_boards, resolve_boards
    from ..schema import boards_of

    several = stopped is not None and stopped.environment.device == "cuda" and len(boards_of(stopped.environment.device_uuid)) > 1
    if device == "auto" and several:
        device = ALL
    return resolve_boards(device) if names_boards(device) else (resolve_device(device),)


def _stopped(resume: str, project: Project) -> tuple[str, Run]:
    """The folder of the run to resume, and its record."""
    from ..store.finding import find_run
    from ..store.run_folder import read_run

    folder = find_run(resume, project, wait=True)
    return str(folder), read_run(folder)


def selection_of(stopped: Run) -> tuple[list[str] | None, str | None, str | None, str | None]:
    """The suites, op, kernels and cases that a stopped run was asked for.

    Suites come in the words of its command, since a suite file that is no suite of the project is found by its path alone.
    """
    from ..store.files import option_values

    suites = option_values(stopped.command, "--suite") or list(stopped.selected or ()) or None
    return suites, stopped.selected_op, stopped.selected_kernels, stopped.selected_cases


def require_same_selection(
    stopped: Run, suites: tuple[str, ...], op: str | None, kernel: str | None, case: str | None, *, shard: str = ""
) -> None:
    """Refuse to resume a run with another selection.

    Raises:
        UsageError: naming what the run was asked for, and what it is now.
    """
    from ..errors import UsageError

    pairs = [
        ("suites", ", ".join(stopped.selected or ()), ", ".join(suites)),
        ("--op", stopped.selected_op, op),
        ("--kernel", stopped.selected_kernels, kernel),
        ("--case", stopped.selected_cases, case),
        ("--shard", stopped.shard, shard),
    ]
    different = [f"{name} {old or 'none'} -> {new or 'none'}" for name, old, new in pairs if (old or "") != (new or "")]
    if different and stopped.selected is not None:  # records of older versions do not say
        raise UsageError(
            f"--resume: run {stopped.id} was asked for something else: {'; '.join(different)}; "
            "leave the selection out, since the run knows its own, or start a new run"
        )


def show_run(outcome: Outcome[Run], *, json: bool, resumable: bool = True, said: Collection[str] = ()) -> None:
    """Write the views of a run into its folder, and print it; of one that ended early, say how to go on where it is `resumable`.

    `said` are warnings that stand on the screen already; the folder's
    report holds them too.

    Raises:
        BaseException: what ended it early, after saying what is kept.
    """
    import msgspec

    from ..report.run.document import run_document
    from ..report.run.pages import write_views
    from ..report.run.table import print_run
    from .shared.output import console, print_json

    if outcome.folder is not None:
        try:
            write_views(outcome.record, outcome.folder)
        except OSError as error:  # a full disk; the record itself is whole
            remark("warning", f"{outcome.folder}: the report could not be written: {error.strerror or error}; `fusebench report` makes it")
    if outcome.interruption is not None:
        say_what_is_kept(outcome, resume=resumable and not outcome.record.complete)
        raise outcome.interruption
    if json:
        print_json(run_document(outcome.record, outcome.folder))
    else:
        warnings = [warning for warning in outcome.record.warnings if warning not in said]
        print_run(msgspec.structs.replace(outcome.record, warnings=warnings), console())
        typer.echo(f"run: {outcome.folder}")
