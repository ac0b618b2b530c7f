"""`fusebench report`: a run in formats for people and CI systems."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from ..errors import RunRecordError, UsageError
from ..schema import Run

if TYPE_CHECKING:
    from ..config import Project


class Format(StrEnum):
    """Formats of a report."""

    MARKDOWN = "md"
    HTML = "html"
    JUNIT = "junit"
    GITHUB = "github"
    PAGES = "pages"
    RECORD = "record"
    GITHUB_ACTION_BENCHMARK = "github-action-benchmark"
    PYTORCH_OSS = "pytorch-oss"
    BENCHER = "bencher"
    PYTEST_BENCHMARK = "pytest-benchmark"
    OTAVA = "otava"

    @property
    def of_another_tool(self) -> bool:
        """Whether `report.exports` writes it."""
        return self not in (Format.MARKDOWN, Format.HTML, Format.JUNIT, Format.GITHUB, Format.PAGES, Format.RECORD)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder, a run id or the start of one, or `latest`.")],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="md: one page for a pull request; html: one self-contained file with everything; junit, github: for CI; pages: a folder "
            "with a page and a picture per suite; record: the record in the newest schema; the others are files for the tools of these "
            "names (docs/exports.md).",
        ),
    ] = Format.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE|DIR", help="Write here instead of to stdout; pages and record need a folder.")
    ] = None,
) -> None:
    """Render the record of a run.

    A run older than its device's calibration is shown with the stored calibration.  Records of `fusebench ab` and `fusebench ncu`, by path
    or id, are rendered as md.  A record with impossible figures is refused with their names.

    `--format record --out DIR` converts the record of an older fusebench: DIR gets a new run folder, and RUN stays as it is.
    """
    from ..config import find_project
    from ..store.counter_folder import COUNTERS_FILE
    from ..store.files import write_file
    from ..store.finding import COMPARISON_FILE, LATEST, find_run
    from ..store.run_folder import RUN_FILE

    if form in (Format.PAGES, Format.RECORD) and out is None:
        raise UsageError(f"--format {form}: writes several files; say into which folder with --out DIR")
    project = find_project()
    others = {COMPARISON_FILE: ("ab", _comparison), COUNTERS_FILE: ("ncu", _counters)}
    # `latest` is the latest run that was timed, whatever was compared or counted since.
    folder = find_run(run, project, records=(RUN_FILE,) if run == LATEST else (RUN_FILE, *others))
    command, render = next((other for file, other in others.items() if (folder / file).is_file()), ("run", None))
    if render is not None and form is not Format.MARKDOWN:
        raise UsageError(f"--format {form}: {folder} is of `fusebench {command}`, whose records are rendered as md only")
    if form is Format.RECORD and out is not None:
        typer.echo(f"wrote {_converted(folder, out)}", err=True)
        return
    if form is Format.PAGES and out is not None:
        files = _pages(_record(folder, project), out)
    elif form.of_another_tool:
        files = _exported(_record(folder, project), form, folder, project, out)
        if out is None:
            return
    else:
        text = render(folder) if render is not None else _render(_record(folder, project), form, folder, out)
        if out is None:
            typer.echo(text, nl=False)
            return
        files = {out: text.encode()}
    for file, content in files.items():
        try:
            write_file(file, content)
        except OSError as error:
            raise UsageError(f"--out {out}: {file} cannot be written: {error.strerror or error}") from error
    typer.echo(f"wrote {out}" if form is not Format.PAGES else f"wrote {len(files)} files into {out}", err=True)


def _record(folder: Path, project: Project) -> Run:
    from ..store.calibration_note import with_calibration
    from ..store.run_folder import read_run
    from ..verdict.record_validation import require_showable

    run = read_run(folder)
    require_showable(run)
    return with_calibration(run, project.results)


def _converted(folder: Path, out: Path) -> Path:
    from ..store.files import require_writable
    from ..store.run_folder import convert_run

    require_writable(out, instead="name another with --out DIR")
    return convert_run(folder, out)


def _comparison(folder: Path) -> str:
    from ..report.ab import ab_markdown
    from ..store.comparison_folder import read_comparison

    return ab_markdown(read_comparison(folder))


def _counters(folder: Path) -> str:
    from ..report.counters_markdown import counters_markdown
    from ..store.counter_folder import read_counters

    return counters_markdown(read_counters(folder))


def _pages(run: Run, folder: Path) -> dict[Path, bytes]:
    from ..report.pages import suite_pages

    return {folder / name: content for name, content in suite_pages(run).items()}


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


def _html(run: Run, folder: Path, out: Path | None) -> str:
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
    return html_report(run, samples=samples, raw={file.name: quote(os.path.relpath(file.resolve(), start)) for file in files})


def _render(run: Run, form: Format, folder: Path, out: Path | None) -> str:
    if form is Format.HTML:
        return _html(run, folder, out)
    if form is Format.JUNIT:
        from ..report.ci import junit_xml

        return junit_xml(run)
    if form is Format.GITHUB:
        from ..report.ci import github_annotations

        return github_annotations(run)
    from ..report.pull_request import pull_request_page

    return pull_request_page(run)
