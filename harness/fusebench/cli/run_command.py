"""`fusebench run`: the main job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schema import CacheState, ExitCode
from ..verdict.margin_rule import DEFAULT_MARGIN, MarginRule
from .evidence_work import Measured, providers_of_run
from .options import (
    CaseOption,
    DeviceOption,
    EvidenceOption,
    JsonOption,
    KernelOption,
    KernelsOption,
    OpOption,
    SuiteOption,
    TimeoutOption,
    a_number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..config import Project
    from ..runner.run.resuming import Resumed
    from ..runner.run.session import Session
    from ..schema import Run
    from ..verdict.compare_to_baseline import Suspect

OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the run's folder; results/runs of the project by default.")
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="SECONDS",
        min=1.0,
        callback=a_number,
        help="Stop measuring after this long; what is left is `undecided` (exit code 4).",
    ),
]
WaitOption = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0.0, callback=a_number, help="Wait this long for a busy device to become idle."),
]
CacheOption = Annotated[CacheState, typer.Option("--cache", help="Whether the cache is emptied, by reading, before every timed call.")]
TimerOption = Annotated[
    str,
    typer.Option(
        "--timer", metavar="auto|cupti|cuda_events|cuda_graph|host", help="Timer; results of different timers are never compared."
    ),
]
ReplicatesOption = Annotated[
    int | None, typer.Option("--replicates", min=2, help="Fresh random placements of all buffers, each of many rounds.", show_default=False)
]
PrecisionOption = Annotated[
    float | None,
    typer.Option(
        "--precision",
        metavar="SHARE",
        min=0.0005,
        max=1.0,
        callback=a_number,
        help="Measure each case in 8, 12, 16 or 20 processes, until every fused kernel's speedup is known to this share: 0.002 is +-0.2 %.",
        show_default=False,
    ),
]
RoundsOption = Annotated[
    int | None, typer.Option("--rounds", min=2, help="Rounds per replicate; a round times every kernel once.", show_default=False)
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that was stopped: a folder, a run id or `latest`.  Its finished cases are taken over; device, versions, "
        "commit and sampling must be the same.",
        show_default=False,
    ),
]
ConfirmOption = Annotated[
    bool,
    typer.Option(
        "--confirm/--no-confirm",
        help="Measure cases that one process would call slower than the stored baseline, undecided, or faster without a cause, again in 8 "
        "fresh processes (16 cases at most); their figures and verdicts are then those of the fresh ones.",
    ),
]
MarginOption = Annotated[
    float,
    typer.Option(
        "--margin",
        min=0.001,
        max=1.0,
        callback=a_number,
        help="Change against the stored baseline that counts, twice that for calls of several launches: 0.02 is 2 %.",
    ),
]


def run(
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    out: OutOption = None,
    budget: BudgetOption = None,
    wait: WaitOption = 0.0,
    cache: CacheOption = CacheState.COLD,
    timer: TimerOption = "auto",
    replicates: ReplicatesOption = None,
    rounds: RoundsOption = None,
    precision: PrecisionOption = None,
    resume: ResumeOption = None,
    margin: MarginOption = DEFAULT_MARGIN,
    confirm: ConfirmOption = True,
    evidence: EvidenceOption = True,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Check kernels, time those that are right, and write one immutable run.

    Every case goes through the accuracy gate first; a kernel that is wrong is never timed.  Kernels are timed in paired rounds against
    the split chain, a copy of the same bytes and a second copy of the baseline, on several random placements of all buffers.  The run's
    folder holds run.json, samples.parquet, report.md and speedup.png.

    Where a baseline is stored for the device, every kernel is judged against it.  What one process would call slower, or cannot decide, is
    measured again in fresh processes first (--no-confirm leaves that out).

    A kernel that regressed against the stored baseline is compiled as it was at the baseline's commit and as it is, and what changed is
    part of the report; where Nsight Compute can read hardware counters, so are those of the first four (--no-evidence leaves both out).
    """
    import msgspec

    from ..device import device_lock, require_idle, resolve_device
    from ..device.toolchain import require_torch_for
    from ..report.document import run_document
    from ..report.table import print_run
    from ..runner.run.options import Options, default_plan
    from ..runner.run.session import Session
    from ..runner.workers.checking import Workers
    from ..timing.select import require_timer
    from ..verdict.compare_to_baseline import judge_run
    from .output import console, print_json, remark
    from .progress import make_reporter
    from .selection import resolve_selection

    require_timer(timer)  # before the kernels are loaded
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels)
    target = resolve_device(device)
    require_timer(timer, target.kind)
    require_torch_for(target)
    changes = {
        name: value for name, value in (("replicates", replicates), ("rounds", rounds), ("precision", precision)) if value is not None
    }
    plan = msgspec.structs.replace(default_plan(target.kind, cache), **changes)
    resumed = _stopped_run(resume, selection.project) if resume is not None else None
    options = Options(
        plan=plan,
        timer=timer,
        budget_s=budget,
        kernel=kernel,
        command=command_line(),
        selected=tuple(one.name for one in selection.suites),
        op=op,
        case=case,
        resumed=resumed,
    )
    rule = MarginRule(margin)
    folder, baseline = _folder_for(out, selection.project, target.name)

    def in_doubt(record: Run) -> Sequence[Suspect]:
        return judge_run(record, baseline, rule).suspects if confirm and baseline is not None else ()

    with device_lock(target, wait_s=wait, on_wait=lambda text: remark("note", text)):
        warnings = require_idle(target, wait_s=wait, on_wait=lambda text: remark("note", text))
        session = Session(selection.collection, target, selection.project.root, options, make_reporter())
        for warning in (*target.warnings, *warnings):
            session.warn(warning)
        interruption: KeyboardInterrupt | Exception | None = None
        with Workers(target, selection.collection.roots, kernel_timeout, ops=selection.ops, timer=timer) as workers:
            try:
                session.run(selection.cases, workers, in_doubt)
            except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  what was measured is kept before it goes on
                interruption = error
    if interruption is not None:
        _keep_partial(session, folder, interruption)
        raise interruption
    measured = Measured(selection.collection, target, cache, kernel_timeout) if evidence else None
    record = _concluded(session, folder, rule=rule, baseline=baseline, project=selection.project, measured=measured)
    written = _write(session, folder, record)
    if json:
        print_json(run_document(record, written))
    else:
        print_run(record, console())
        typer.echo(f"run: {written}")
    raise typer.Exit(ExitCode(record.exit_code))


def _folder_for(out: Path | None, project: Project, device_name: str) -> tuple[Path, Run | None]:
    """Where the run's folder goes and the stored baseline, once it is known that what will be measured can be judged and kept."""
    from ..store.calibration_note import load_note
    from ..store.files import require_writable
    from ..store.finding import runs_folder
    from ..verdict.record_validation import load_valid_baseline

    folder = out if out is not None else runs_folder(project)
    require_writable(folder, instead="name another with --out DIR")
    load_note(project.results, device_name)
    return folder, load_valid_baseline(project.results, device_name)


def _stopped_run(text: str, project: Project) -> Resumed:
    from ..runner.run.resuming import Resumed
    from ..store.finding import find_run
    from ..store.run_folder import read_run, sample_values

    folder = find_run(text, project)
    return Resumed(read_run(folder), sample_values(folder))


def _concluded(
    session: Session, folder: Path, *, rule: MarginRule, baseline: Run | None, project: Project, measured: Measured | None
) -> Run:
    """The run with its verdicts and, where `measured` says of what, with evidence about regressions; kept without them if that fails."""
    from ..store.calibration_note import with_calibration
    from ..verdict.compare_to_baseline import judge_run, with_verdicts

    try:
        record = with_calibration(session.record(), project.results)
        record = with_verdicts(record, judge_run(record, baseline, rule))
        return record if measured is None or baseline is None else _explained(record, project, measured, baseline)
    except (KeyboardInterrupt, Exception) as error:
        _keep_partial(session, folder, error)
        raise


def _explained(record: Run, project: Project, measured: Measured, baseline: Run) -> Run:
    """`record`, judged, with evidence about its regressions against the stored baseline."""
    from ..runner.evidence.regressions import any_regressed, explained_run

    return explained_run(record, providers_of_run(project, measured, baseline)) if any_regressed(record) else record


def command_line() -> str:
    """The command line, as it can be pasted."""
    return shlex.join(["fusebench", *sys.argv[1:]])


def _write(session: Session, folder: Path, record: Run) -> Path:
    from ..report.pages import write_views
    from ..store.run_folder import write_run

    written = write_run(folder, record, session.samples)
    write_views(record, written)
    return written


def _keep_partial(session: Session, folder: Path, interruption: BaseException) -> None:
    """Write what a run has that did not come to its verdicts; nothing where it has nothing."""
    import msgspec

    from .exit_status import what_ended
    from .output import remark

    record = session.record()
    if ended := what_ended(interruption):
        record = msgspec.structs.replace(record, exit_code=ended[0], warnings=[*record.warnings, ended[1]])
    if record.results:
        how = "without verdicts" if record.complete else "marked incomplete"
        remark("note", f"interrupted; what was measured is kept, {how}, in {_write(session, folder, record)}")
