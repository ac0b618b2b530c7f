"""`fusebench history`: where kernels became slower or faster over many runs."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UnknownNameError, UsageError
from ..naming import device_slug
from ..schema import Case, ExitCode
from .shared.options import CaseOption, JsonOption, KernelOption
from .shared.output import console, print_json, remark
from .shared.results import ResultsOption

if TYPE_CHECKING:
    from ..config import Project
    from ..report.history import History
    from ..verdict.history.selected import Selected
    from ..verdict.history.series import Snapshot

PICTURE_SUFFIX = ".png"


class Form(StrEnum):
    """The forms a history is printed in."""

    TEXT = "text"
    MARKDOWN = "md"


class FigureName(StrEnum):
    """`stats.history.Figure`, spelled here so that `--help` need not import what it rests on."""

    SOL = "sol"
    SPEEDUP = "speedup"
    RAW = "raw"


def history(
    *,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUNS]...",
            help="Run folders, folders of run folders, files that --keep wrote, or globs of these; by default the project's results/runs.",
            show_default=False,
        ),
    ] = None,
    suite: Annotated[list[str] | None, typer.Option("--suite", metavar="NAME", help="Only this suite of the runs; repeatable.")] = None,
    op: Annotated[str | None, typer.Option("--op", metavar="NAME", help="Only cases and kernels of this op.")] = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the newest N comparable runs.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="DATE", help="Only runs from then on: 2026-07-01, UTC.")] = None,
    figure: Annotated[
        FigureName,
        typer.Option(
            "--figure",
            help="sol: share of the speed of light; speedup: over the case's baseline; raw: microseconds, of runs with the newest run's "
            "driver and toolchain, each case on its newest board only.",
        ),
    ] = FigureName.SOL,
    margin: Annotated[float, typer.Option("--margin", metavar="SHARE", help="Smallest change between two levels; 0.01 is 1 %.")] = 0.01,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with 1 if a newest level is slower than the one before.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE|DIR", help="Write a picture (FILE.png), or a folder with one picture more per case that moved."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FILE", help="Write the runs to one small .parquet file, which `history` reads in their place."),
    ] = None,
    scatter: Annotated[
        bool,
        typer.Option(
            "--scatter",
            help="Estimate from these runs how far apart two runs of equal code lie, and store it as results/calibration/<device>."
            "scatter.json: `gate` and `run` take their margins and intervals from it.",
        ),
    ] = False,
    form: Annotated[Form, typer.Option("--format", help="text for the terminal, md for a page.")] = Form.TEXT,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Find where kernels became slower or faster over many runs, and between which commits.

    Runs whose device model, timer or cache state differs from the newest run's are left out and named.  A level needs five runs, so a
    change shows five runs after it happened.  `fusebench gate` judges a single run.

    With --results, the runs are those of the catalogue there, of every device model.  Runs of other boards, drivers and timers stay in,
    and each change has a cause: regression, improvement, method, toolchain, hardware or noise.

    Exit codes: 0; with --gate 1 a newest level that is slower, 4 too few runs to see anything.
    """
    from ..config import find_project
    from ..report.history import History, history_document, history_markdown, print_history
    from ..stats.fdr import DEFAULT_RATE
    from ..store.history_file import HISTORY_SUFFIX
    from ..verdict.history.selected import Selected
    from ..verdict.history.series import Figure, comparable_runs, series_of
    from ..verdict.history.shifts import find_shifts, history_exit_code
    from ..verdict.history.snapshots import history_folders, read_history

    if not 0 < margin < 1:
        raise UsageError(f"--margin {margin:g}: expected a share between 0 and 1, for example 0.01 for 1 %")
    start = _date(since)
    if keep is not None and keep.suffix != HISTORY_SUFFIX:
        raise UsageError(f"--keep {keep}: the runs go into one {HISTORY_SUFFIX} file; give a name that ends so")
    if plot is not None and plot.suffix not in ("", PICTURE_SUFFIX) and not plot.is_dir():
        raise UsageError(f"--plot {plot}: pictures are {PICTURE_SUFFIX} files; give a name that ends so, or a folder")
    if results is not None:
        if runs or keep is not None or scatter:
            raise UsageError("--results reads the catalogue there: name no RUNS beside it, and pass neither --keep nor --scatter")
        chosen_runs = Selected(suites=tuple(suite or ()), op=op, kernel=kernel, case=case, since=start, last=last, figure=Figure(figure))
        raise typer.Exit(_catalogued(results, chosen_runs, margin, gate=gate, plot=plot, form=form, json=json))
    project = find_project()
    folders = history_folders(runs or [], project)
    read, unreadable = read_history(folders)
    _say_altered(folders, {one.folder for one in unreadable})
    chosen = Figure(figure)
    kept, left_out = comparable_runs(read, chosen, since=start, last=last)
    tracks = find_shifts(series_of(kept, chosen, _wanted(kept, suite, op, kernel, case)), margin=margin)
    found = History(runs=kept, left_out=left_out, unreadable=unreadable, tracks=tracks, figure=chosen, margin=margin, rate=DEFAULT_RATE)
    code = history_exit_code(tracks) if gate else ExitCode.PASS
    if json:
        print_json(history_document(found, code))
    elif form is Form.MARKDOWN:
        typer.echo(history_markdown(found), nl=False)
    else:
        print_history(found, console())
    if plot is not None:
        _write_pictures(found, plot)
    if keep is not None:
        _keep(folders, keep)
    if scatter:
        _write_scatter(folders, project)
    raise typer.Exit(code)


def _catalogued(results: str, selected: Selected, margin: float, *, gate: bool, plot: Path | None, form: Form, json: bool) -> ExitCode:
    """Print the history of every device model in the catalogue at `results`, and return the exit code."""
    from ..config import find_project
    from ..schema import worst_exit_code
    from ..stats.fdr import DEFAULT_RATE
    from ..store.catalogue.query import Catalogue
    from ..verdict.history.catalogued import histories
    from ..verdict.history.dividing import side_by_side
    from ..verdict.history.shifts import history_exit_code
    from .shared.results import open_results

    catalogue = Catalogue(open_results(results, find_project()).files)
    with side_by_side(catalogue) as divide:
        # While DuckDB reads the files, for a fifth of a second, the reports are imported, which takes another.
        threading.Thread(target=importlib.import_module, args=("..report.history", __package__)).start()
        found_by_device = histories(catalogue, selected, margin=margin, divide=divide)

    from ..report.history import History, history_document, history_markdown, print_history

    documents, codes = [], [ExitCode.PASS]
    for one in found_by_device:
        found = History(
            runs=one.runs, left_out=[], unreadable=[], tracks=one.tracks, figure=selected.figure, margin=margin, rate=DEFAULT_RATE
        )
        codes.append(history_exit_code(one.tracks) if gate else ExitCode.PASS)
        if json:
            documents.append({"device": one.device, **history_document(found, codes[-1])})
        elif form is Form.MARKDOWN:
            typer.echo(history_markdown(found), nl=False)
        else:
            print_history(found, console())
        if plot is not None:
            _write_pictures(found, plot if plot.suffix == PICTURE_SUFFIX else plot / device_slug(one.device))
    code = worst_exit_code(codes)
    if json:
        print_json({"exit_code": int(code), "devices": documents})
    return code


def _say_altered(folders: Iterable[Path], unreadable: Collection[str]) -> None:
    """Say which records do not fit their seals; samples, which a history does not read, are not looked at."""
    from ..store.run_folder import seal_of
    from ..store.seal import REMEDY

    for folder in folders:
        if folder.is_dir() and str(folder) not in unreadable and (altered := seal_of(folder, samples=False).altered):
            remark("warning", f"{folder} was altered after it was written: {altered}; {REMEDY}")


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text}: not a date; expected one such as 2026-07-01 or 2026-07-01T06:00:00Z") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _wanted(
    runs: Sequence[Snapshot], suites: Sequence[str] | None, op: str | None, kernel: str | None, case: str | None
) -> Callable[[Case, str], bool]:
    """The series that the SELECTION options choose.  They choose among the records, not among the project's kernels of today.

    Raises:
        UnknownNameError: nothing in `runs` answers to an option.
    """
    from ..evidence.records import matches_id

    cases = {found.key: found for one in runs for found in one.cases.values()}.values()
    kernels = {name for one in runs for _, name in one.readings}

    def fits(found: Case) -> bool:
        return case is None or found.matches(case)

    if runs:
        where = f"{len(runs)} comparable runs"
        for name in suites or ():
            _require("suite", name, [found.suite for found in cases], name.__eq__, where)
        for name in op.split(",") if op is not None else ():
            _require("op", name, [found.op for found in cases], name.__eq__, where)
        for glob in kernel.split(",") if kernel is not None else ():
            _require("kernel", glob, kernels, functools.partial(matches_id, pattern=glob), where)
        for glob in case.split(",") if case is not None else ():
            if not any(found.matches(glob) for found in cases):
                raise UnknownNameError("case", glob, {found.name for found in cases}, where)
    return lambda found, name: (
        (not suites or found.suite in suites) and (op is None or found.op in op.split(",")) and fits(found) and matches_id(name, kernel)
    )


def _require(what: str, name: str, known: Iterable[str], fits: Callable[[str], bool], where: str) -> None:
    distinct = set(known)
    if not any(fits(one) for one in distinct):
        raise UnknownNameError(what, name, distinct, where)


def _keep(folders: Sequence[Path], file: Path) -> None:
    from ..verdict.history.snapshots import keep_history
    from .shared.asked_files import require_no_record

    require_no_record(file, f"--keep {file}")
    try:
        typer.echo(f"wrote {keep_history(folders, file)} runs into {file}", err=True)
    except OSError as error:
        raise UsageError(f"--keep {file}: cannot be written: {error.strerror or error}") from error


def _write_scatter(folders: Sequence[Path], project: Project) -> None:
    from ..store.scatter_file import write_scatter
    from ..verdict.baseline.run_scatter import FEWEST, scatter_between
    from ..verdict.history.snapshots import runs_in
    from ..verdict.margins.rule import MarginRule
    from ..verdict.margins.words import margin_words

    runs = runs_in(folders)
    found = scatter_between(runs)
    if found is None:
        raise UsageError(
            f"--scatter: found {len(runs)} runs; expected at least two of one device, timer and cache state, with {FEWEST} comparisons of "
            "equal code in one class of calls. Name more runs; nothing was written"
        )
    file = write_scatter(project.results, found)
    newest = max(runs, key=lambda run: run.created)
    typer.echo(f"wrote {file}\n{margin_words(MarginRule(scatter=found, device=newest.environment.device), newest)}", err=True)


def _write_pictures(found: History, plot: Path) -> None:
    from ..report.plots.history import history_pictures, history_png
    from .shared.asked_files import write_asked

    alone = plot.suffix == PICTURE_SUFFIX and not plot.is_dir()
    pictures = {plot: history_png(found)} if alone else {plot / name: content for name, content in history_pictures(found).items()}
    for file, content in pictures.items():
        write_asked(file, content, f"--plot {plot}")
    typer.echo(f"wrote {plot}" if alone else f"wrote {len(pictures)} files into {plot}", err=True)
