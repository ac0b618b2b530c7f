"""`fusebench report`: a run in formats for people and CI systems."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from ..errors import RunRecordError, UsageError
from ..schema import Run
from .shared.results import ResultsOption, open_results

if TYPE_CHECKING:
    from ..config import Project
    from ..report.history import History


class Format(StrEnum):
    """Formats of a report."""

    MARKDOWN = "md"
    HTML = "html"
    JUNIT = "junit"
    GITHUB = "github"
    PAGES = "pages"
    PLOTS = "plots"
    LIMITS = "limits"
    RECORD = "record"
    GITHUB_ACTION_BENCHMARK = "github-action-benchmark"
    PYTORCH_OSS = "pytorch-oss"
    BENCHER = "bencher"
    PYTEST_BENCHMARK = "pytest-benchmark"
    OTAVA = "otava"
    CSV = "csv"

    @property
    def of_another_tool(self) -> bool:
        """Whether `report.exports` writes it."""
        return self not in (
            Format.MARKDOWN,
            Format.HTML,
            Format.JUNIT,
            Format.GITHUB,
            Format.PAGES,
            Format.PLOTS,
            Format.LIMITS,
            Format.RECORD,
            Format.CSV,
        )


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder, a run id or the start of one, or `latest`.")] = "latest",
    *,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="md: one page for a pull request; html: one self-contained file with everything; junit, github: for CI; pages: a folder "
            "with a page and a picture per suite; plots: a folder with speedup, roofline, version over version and sweeps as PNG and SVG; "
            "limits: a page on how near each case comes to the limit, with a picture beside FILE; "
            "record: the record in the newest schema; csv: a row per kernel and case; the others are files for the tools of these names "
            "(docs/exports.md).",
        ),
    ] = Format.MARKDOWN,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE|DIR", help="Write here, not to stdout; pages, plots and record need a folder."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            "--site", metavar="DIR", help="Write a static site instead: index, a page per kernel, the HTML of RUN, dashboard-data.json."
        ),
    ] = None,
    past: Annotated[
        list[str] | None,
        typer.Option(
            "--history",
            metavar="RUNS",
            help="Runs for the history of html and --site, as `fusebench history` takes them; repeatable. --site alone reads results/runs.",
        ),
    ] = None,
    results: ResultsOption = None,
) -> None:
    """Render the record of a run.

    A run older than its device's calibration is shown with the stored calibration.  Records of `fusebench ab`, `fusebench ncu` and
    `fusebench model`, by path or id, are rendered as md.  A record with impossible figures is refused with their names.

    A folder of records of `fusebench model`, such as results/models, is rendered as the table of all models' steps: md, or pages with
    a page and a picture per model.  The saving that kernel times predict for a step is made anew from the baseline of its GPU model.

    `--format record --out DIR` converts the record of an older fusebench: DIR gets a new run folder, and RUN stays as it is.
    """
    from ..config import find_project
    from ..store.finding import COMPARISON_FILE, COUNTERS_FILE, LATEST, MODEL_FILE
    from ..store.model_folder import model_folders
    from ..store.run_folder import RUN_FILE

    _require_options(form, out, site, past)
    opened = open_results(results, find_project())
    project = opened.project
    others: dict[str, tuple[str, Callable[[Path], str]]] = {
        COMPARISON_FILE: ("ab", _comparison),
        COUNTERS_FILE: ("ncu", _counters),
        MODEL_FILE: ("model", functools.partial(_model, project=project)),
    }
    # `latest` is the latest run that was timed, whatever was compared or counted since.
    folder = opened.find(run, records=(RUN_FILE,) if run == LATEST else (RUN_FILE, *others))
    if not any((folder / file).is_file() for file in (RUN_FILE, *others)) and model_folders(folder):
        _report_models(folder, project, form, out, site)
        return
    command, render = next((other for file, other in others.items() if (folder / file).is_file()), ("run", None))
    if render is not None and (form is not Format.MARKDOWN or site is not None):
        wanted = f"--format {form}" if site is None else "--site"
        raise UsageError(f"{wanted}: {folder} is of `fusebench {command}`, whose records are rendered as md only")
    if form is Format.RECORD and out is not None:
        typer.echo(f"wrote {_converted(folder, out)}", err=True)
    elif site is not None:
        _write(_site(_record(folder, project), folder, site, past, project), site, "--site")
    elif form is Format.PLOTS and out is not None:
        _write(_plots(_record(folder, project), out), out, "--out")
    elif form is Format.PAGES and out is not None:
        _write(_pages(_record(folder, project), out), out, "--out")
    elif form is Format.LIMITS and out is not None:
        _write(_limits(_record(folder, project), out), out, "--out")
    elif form.of_another_tool:
        _write(_exported(_record(folder, project), form, folder, project, out), out, "--out")
    else:
        history = _history(past, project) if past else None
        text = render(folder) if render is not None else _render(_record(folder, project), form, folder, out, history)
        if out is None:
            typer.echo(text, nl=False)
        else:
            _write({out: text.encode()}, out, "--out")


def _require_options(form: Format, out: Path | None, site: Path | None, past: list[str] | None) -> None:
    if form in (Format.PAGES, Format.PLOTS, Format.RECORD) and out is None:
        raise UsageError(f"--format {form}: writes several files; say into which folder with --out DIR")
    if past and form is not Format.HTML and site is None:
        raise UsageError(f"--history: --format {form} has no history; use --format html or --site DIR, or `fusebench history`")
    if site is not None and (out is not None or form is not Format.MARKDOWN):
        raise UsageError("--site writes a site of its own; pass neither --format nor --out beside it")


def _write(files: Mapping[Path, bytes], into: Path | None, option: str) -> None:
    """Write `files` and say so; nothing for none."""
    from .shared.asked_files import write_asked

    for file, content in files.items():
        write_asked(file, content, f"{option} {into}")
    if files:
        typer.echo(f"wrote {into}" if into in files else f"wrote {len(files)} files into {into}", err=True)


def _record(folder: Path, project: Project) -> Run:
    from ..store.run_folder import read_run
    from ..verdict.record_validation import require_showable
    from .shared.seals import say_altered, with_told_calibration

    run = read_run(folder)
    require_showable(run)
    say_altered(folder, run)
    return with_told_calibration(run, project)


def _converted(folder: Path, out: Path) -> Path:
    from ..store.files import require_writable
    from ..store.run_folder import convert_run

    require_writable(out, instead="name another with --out DIR")
    return convert_run(folder, out)


def _comparison(folder: Path) -> str:
    from ..report.ab import ab_markdown
    from ..store.comparison_folder import read_comparison, seal_of_comparison
    from .shared.seals import say_of

    found = read_comparison(folder)
    say_of(seal_of_comparison(folder), f"comparison {found.id}", folder)
    return ab_markdown(found)


def _counters(folder: Path) -> str:
    from ..report.evidence.counters_markdown import counters_markdown
    from ..store.counter_folder import read_counters, seal_of_counters
    from .shared.seals import say_of

    found = read_counters(folder)
    say_of(seal_of_counters(folder), f"run {found.id}", folder)
    return counters_markdown(found)


def _model(folder: Path, *, project: Project) -> str:
    from ..models.stored import explained_today
    from ..report.model import PICTURE, model_markdown
    from ..store.model_folder import model_seal, read_model
    from .shared.seals import say_of

    found = read_model(folder)
    say_of(model_seal(folder), f"model record {found.id}", folder)
    found = explained_today({found.model: found}, project.results)[found.model]
    return model_markdown(found, picture=PICTURE if (folder / PICTURE).is_file() else "")


def _report_models(parent: Path, project: Project, form: Format, out: Path | None, site: Path | None) -> None:
    """The table of the models' steps, or with `pages` a page per model beside it."""
    from ..models.stored import explained_today
    from ..report.steps import step_pages, steps_markdown
    from ..store.model_folder import model_seal, newest_models
    from .shared.seals import say_of

    if form not in (Format.MARKDOWN, Format.PAGES) or site is not None:
        wanted = f"--format {form}" if site is None else "--site"
        raise UsageError(f"{wanted}: {parent} holds records of `fusebench model`, which are rendered together as md or pages")
    found = newest_models(parent)
    if not found:
        raise RunRecordError(f"{parent}: holds tiny models only; measure one without --tiny")
    for folder, record in found.values():
        say_of(model_seal(folder), f"model record {record.id}", folder)
    records = explained_today({name: record for name, (_, record) in found.items()}, project.results)
    if form is Format.PAGES and out is not None:
        _write({out / name: content for name, content in step_pages(records).items()}, out, "--out")
    elif out is not None:
        _write({out: steps_markdown(records).encode()}, out, "--out")
    else:
        typer.echo(steps_markdown(records), nl=False)


def _pages(run: Run, folder: Path) -> dict[Path, bytes]:
    from ..report.run.pages import suite_pages

    return {folder / name: content for name, content in suite_pages(run).items()}


def _limits(run: Run, out: Path) -> dict[Path, bytes]:
    from ..report.plots.limits import limits_png
    from ..report.run.limits import limits_markdown

    picture = out.with_suffix(".png")
    if picture == out:
        raise UsageError(f"--out {out}: the picture gets this name; name the page, such as {out.with_suffix('.md')}")
    return {out: limits_markdown(run, picture=picture.name).encode(), picture: limits_png(run)}


def _plots(run: Run, folder: Path) -> dict[Path, bytes]:
    from ..report.plots.speedup import run_pictures
    from ..report.versions import ONE_VERSION, version_steps
    from .shared.output import remark

    if not version_steps(run):
        remark("note", ONE_VERSION)
    return {folder / name: content for name, content in run_pictures(run).items()}


def _exported(run: Run, form: Format, folder: Path, project: Project, out: Path | None) -> dict[Path, bytes]:
    """Print `run` in the format of another tool; with `out`, the files to write in place of that."""
    from ..report.exports import export
    from .shared.output import remark

    found = export(form, run, folder, project, out)
    for note in found.notes:
        remark("note", note)
    if out is None:
        typer.echo(found.text, nl=False)
        return {}
    return {out: found.text.encode()} | {out.with_suffix(suffix): text.encode() for suffix, text in found.beside.items()}


def _html(run: Run, folder: Path, out: Path | None, history: History | None) -> str:
    """The page with the distributions of the run's raw samples, where they can be read, and links to its files."""
    import os

    from ..report.html.page import html_report
    from ..store.run_folder import SAMPLES_FILE, read_samples
    from .shared.output import remark

    samples = None
    try:
        samples = read_samples(folder) if (folder / SAMPLES_FILE).is_file() else None
    except RunRecordError as error:
        remark("note", f"the page shows no distributions of times: {error}")
    start = out.resolve().parent if out is not None else folder.resolve()
    files = sorted(file for file in folder.iterdir() if file.suffix in (".json", ".parquet", ".md", ".png"))
    links = {file.name: quote(os.path.relpath(file.resolve(), start)) for file in files}
    return html_report(run, samples=samples, history=history, raw=links)


def _site(run: Run, folder: Path, site: Path, past: list[str] | None, project: Project) -> dict[Path, bytes]:
    from ..report.html.site import NEWEST, site_files

    history = _history(past, project)
    if not history.runs:
        raise UsageError("--site: the history holds no comparable run; name run folders or a history file with --history RUNS")
    page = _html(run, folder, site / NEWEST, history)
    return {site / name: content for name, content in site_files(history, page, run).items()}


def _history(past: list[str] | None, project: Project) -> History:
    """The change points over the runs at `past`; over the project's results/runs without them."""
    from ..report.history import History
    from ..stats.fdr import DEFAULT_RATE
    from ..verdict.history.series import Figure, comparable_runs, series_of
    from ..verdict.history.shifts import DEFAULT_MARGIN, find_shifts
    from ..verdict.history.snapshots import history_folders, read_history
    from .shared.output import remark

    read, unreadable = read_history(history_folders(past or [], project))
    for one in unreadable:
        remark("note", f"skipped {one.folder}: {one.reason}")
    kept, left_out = comparable_runs(read, Figure.SOL)
    tracks = find_shifts(series_of(kept, Figure.SOL))
    return History(
        runs=kept, left_out=left_out, unreadable=unreadable, tracks=tracks, figure=Figure.SOL, margin=DEFAULT_MARGIN, rate=DEFAULT_RATE
    )


def _render(run: Run, form: Format, folder: Path, out: Path | None, history: History | None) -> str:
    if form is Format.HTML:
        return _html(run, folder, out, history)
    if form is Format.JUNIT:
        from ..report.run.ci import junit_xml

        return junit_xml(run)
    if form is Format.GITHUB:
        from ..report.run.ci import github_annotations

        return github_annotations(run)
    if form is Format.CSV:
        from ..report.run.frame import run_csv

        return run_csv(run)
    if form is Format.LIMITS:
        from ..report.run.limits import limits_markdown

        return limits_markdown(run)
    from ..report.run.pull_request import pull_request_page

    return pull_request_page(run)
