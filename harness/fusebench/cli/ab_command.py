"""`fusebench ab`: this checkout's kernels against those of a git commit, in one run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..errors import UsageError
from ..schema import CacheState, ExitCode
from .evidence_work import Measured, providers_between
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
from .run_command import BudgetOption, CacheOption, OutOption, RoundsOption, TimerOption, WaitOption, command_line
from .static_command import AllowOption, ArchOption, JobsOption
from .static_command import CacheOption as NoCacheOption

if TYPE_CHECKING:
    from ..runner.ab.session import ComparingSession
    from ..schema import SamplingPlan
    from ..stats.sequential import Plan
    from ..store.comparison_record import BaseRevision, Comparison
    from .selection import Selection

S = TypeVar("S", bound="SamplingPlan | Plan")

BaseOption = Annotated[
    str | None,
    typer.Option(
        "--base", metavar="REF", help="Commit, branch or tag; its merge base with HEAD is compared with (the commit itself by --exact)."
    ),
]
ExactOption = Annotated[bool, typer.Option("--exact", help="Compare with REF itself, not with its merge base with HEAD.")]
BaseKernelsOption = Annotated[
    Path | None, typer.Option("--base-kernels", metavar="DIR", help="A folder of kernels as the other side, instead of a commit's.")
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        "--margin",
        min=0.001,
        max=1.0,
        callback=a_number,
        help="Change that does not matter; 0.004 (0.4 %) on a GPU, 0.1 on a CPU, 0.05 of the instructions with --static.",
        show_default=False,
    ),
]
StaticOption = Annotated[
    bool,
    typer.Option("--static", help="Compare what the kernels are compiled to, for the targets of --arch; nothing is timed, no GPU needed."),
]
TimeIdenticalOption = Annotated[
    bool, typer.Option("--time-identical", help="Time every kernel whose code is the same on both sides, and not two per case.")
]


def ab(  # noqa: PLR0915 - two kinds of comparison, one list of options
    *,
    suite: SuiteOption = None,
    base: BaseOption = None,
    exact: ExactOption = False,
    base_kernels: BaseKernelsOption = None,
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
    rounds: RoundsOption = None,
    margin: MarginOption = None,
    time_identical: TimeIdenticalOption = False,
    evidence: EvidenceOption = True,
    static: StaticOption = False,
    arch: ArchOption = None,
    allow_incomparable: AllowOption = False,
    jobs: JobsOption = None,
    no_cache: NoCacheOption = False,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Compare this checkout's kernels, uncommitted changes included, with those of a git commit.

    Both sides are checked on the same inputs and timed in the same rounds, until every pair is decided: slower, faster, or inside the
    margin.  A change counts when five fresh processes repeat it.  Kernels made of the same files, or compiled to the same machine code,
    pass; two of them per case are timed to show the noise.  A kernel that has become less accurate is a regression however fast it is.

    With --static nothing is timed: registers, spills, occupancy and instructions are compared, and --allow-incomparable, --jobs and
    --no-cache are as in `fusebench static`.

    What a kernel that regressed is compiled to on both sides is compared without being asked, and where Nsight Compute can read hardware
    counters, so are those of the first four (--no-evidence leaves both out).

    The run's folder, which ends in _ab, holds ab.json, samples.parquet and report.md.

    Exit codes: 0 pass or improvement, 1 regression of speed or accuracy, 4 undecided, 5 a kernel of this checkout failed.
    """
    import msgspec

    from ..device import device_lock, require_idle, resolve_device
    from ..device.toolchain import require_torch_for
    from ..registry import load_collection
    from ..report.ab import ab_document, print_ab
    from ..runner.ab.compared_case import ComparingOptions
    from ..runner.ab.revisions import Revisions
    from ..runner.ab.session import ComparingSession, default_looks
    from ..runner.run.options import default_plan
    from ..runner.workers.checking import Workers
    from ..store.calibration_note import load_note
    from ..store.files import require_writable
    from ..store.finding import runs_folder
    from ..timing.select import require_timer
    from .ab_static import StaticOptions, compare_static
    from .output import console, print_json, remark
    from .progress import make_reporter
    from .selection import resolve_selection

    if (base is None) == (base_kernels is None):
        raise UsageError("say what to compare with: --base REF (a commit, branch or tag), or --base-kernels DIR, and not both")
    if static:
        chosen = resolve_selection(suite=suite, op=op, case=case, kernels=kernels, load_kernels=False)
        with tempfile.TemporaryDirectory(prefix="fusebench-ab-") as unpacked:
            side, roots = other_side(chosen, base, base_kernels, exact, Path(unpacked))
            wanted = StaticOptions(kernel, arch, margin, allow_incomparable, jobs, no_cache, json)
            raise typer.Exit(compare_static(chosen, roots, f"commit {side.commit[:12]}" if side.commit else side.asked, wanted))
    require_timer(timer)
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels)
    target = resolve_device(device)
    require_timer(timer, target.kind)
    require_torch_for(target)
    options = ComparingOptions(
        plan=_with(default_plan(target.kind, cache), rounds=rounds),
        looks=_with(default_looks(target.kind), margin=margin),
        timer=timer,
        budget_s=budget,
        kernel=kernel,
        time_identical=time_identical,
        command=command_line(),
        project_root=selection.project.root,
    )
    folder = out if out is not None else runs_folder(selection.project)
    require_writable(folder, instead="name another with --out DIR")
    calibration = load_note(selection.project.results, target.name)  # one that cannot be read is found before anything is measured
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebench-ab-")))
        other, roots = other_side(selection, base, base_kernels, exact, scratch)
        for note in other.notes:
            remark("note", note)
        locked = stack.enter_context(ExitStack())
        locked.enter_context(device_lock(target, wait_s=wait, on_wait=lambda text: remark("note", text)))
        warnings = require_idle(target, wait_s=wait, on_wait=lambda text: remark("note", text))
        sides = Revisions(selection.collection, load_collection(roots, entry_points=False))
        session = ComparingSession(sides, other, target, options, make_reporter())
        for warning in (*target.warnings, *warnings):
            session.warn(warning)
        interruption: KeyboardInterrupt | Exception | None = None
        with Workers(target, selection.collection.roots, kernel_timeout, base_roots=roots, ops=selection.ops, timer=timer) as workers:
            try:
                session.run(selection.cases, workers)
            except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  what was measured is kept before it goes on
                interruption = error
        record, interruption = _recorded(session, interruption)
        record = msgspec.structs.replace(record, calibration=calibration)
        if interruption is not None:
            _keep_partial(session, record, folder, interruption)
            raise interruption
        if evidence:
            locked.close()  # compiling needs no device: whoever waits for it need not; counters take it again
            try:
                record = _explained(record, Measured(selection.collection, target, cache, kernel_timeout), roots)
            except (KeyboardInterrupt, Exception) as error:
                _keep_partial(session, record, folder, error)
                raise
        written = _write(session, record, folder)
    if json:
        print_json(ab_document(record, written))
    else:
        print_ab(record, console())
        typer.echo(f"run: {written}")
    raise typer.Exit(ExitCode(record.exit_code))


def _recorded(
    session: ComparingSession, interruption: KeyboardInterrupt | Exception | None
) -> tuple[Comparison, KeyboardInterrupt | Exception | None]:
    """The record and what ended the comparison before its end, which may be the judging itself: the record is then without verdicts."""
    try:
        return session.record(), interruption
    except Exception as error:  # noqa: BLE001  raised again when what was compared is kept
        return session.record(judge=False), interruption or error


def _with(settings: S, **given: float | None) -> S:
    """`settings` with those options that were given."""
    import msgspec

    return msgspec.structs.replace(settings, **{name: value for name, value in given.items() if value is not None})


def other_side(
    selection: Selection, base: str | None, base_kernels: Path | None, exact: bool, scratch: Path
) -> tuple[BaseRevision, tuple[Path, ...]]:
    """What is compared with, and where its kernels lie."""
    return _folder_side(base_kernels) if base_kernels is not None else _commit_side(selection, base or "", exact, scratch)


def _folder_side(folder: Path) -> tuple[BaseRevision, tuple[Path, ...]]:
    """A folder as what is compared with, and where its kernels lie."""
    from ..store.comparison_record import BaseRevision

    if not folder.is_dir():
        raise UsageError(f"--base-kernels {folder}: no such folder; expected one like `kernels/`, with a folder per op")
    return BaseRevision(asked=str(folder)), (folder.resolve(),)


def _commit_side(selection: Selection, ref: str, exact: bool, scratch: Path) -> tuple[BaseRevision, tuple[Path, ...]]:
    """The same of a commit, whose kernels are unpacked into `scratch`."""
    from ..runner.evidence.base_checkout import extract, find_base
    from ..store.comparison_record import BaseRevision

    commit = find_base(selection.project.root, ref, exact=exact)
    found = extract(selection.project.root, commit, selection.collection.roots, scratch)
    return BaseRevision(asked=ref, commit=commit.commit, merge_base=commit.merge_base, notes=found.notes), found.roots


def _explained(record: Comparison, measured: Measured, other: Sequence[Path]) -> Comparison:
    """`record` with evidence about its regressions against the kernels in `other`."""
    from ..runner.evidence.regressions import compiled_kernels, explained_comparison

    name = f"commit {record.base.commit[:12]}" if record.base.commit else record.base.asked
    compiled = compiled_kernels([kernel.info for kernel in measured.collection.kernels.values()])
    return explained_comparison(record, compiled, providers_between(measured, other, name))


def _write(session: ComparingSession, record: Comparison, folder: Path) -> Path:
    from ..report.ab import ab_markdown
    from ..store.comparison_folder import write_comparison, write_report

    written = write_comparison(folder, record, session.samples)
    write_report(written, ab_markdown(record))
    return written


def _keep_partial(session: ComparingSession, record: Comparison, folder: Path, interruption: BaseException) -> None:
    """Write what a comparison has that did not come to its end; nothing where it has nothing."""
    import msgspec

    from .exit_status import what_ended
    from .output import remark

    if not session.begun:
        return
    if ended := what_ended(interruption):
        record = msgspec.structs.replace(record, exit_code=ended[0], warnings=[*record.warnings, ended[1]])
    how = "without what was to follow" if record.complete else "marked incomplete"
    remark("note", f"interrupted; what was compared is kept, {how}, in {_write(session, record, folder)}")
