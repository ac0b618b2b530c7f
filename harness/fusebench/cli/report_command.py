"""`fusebench report`: a run in the forms that people and CI systems read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..schema import Run


class Format(StrEnum):
    """The forms a report comes in."""

    MARKDOWN = "md"
    HTML = "html"
    JUNIT = "junit"
    GITHUB = "github"
    PAGES = "pages"


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder, a run id or the start of one, or `latest`.")],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="md for a pull request, html for one self-contained page, junit and github for CI, pages for a folder with a page and a "
            "picture per suite.",
        ),
    ] = Format.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE|DIR", help="Write here instead of to stdout; a folder for pages, which need one.")
    ] = None,
) -> None:
    """Render a run's record; any run can be rendered anew at any time.

    A run that was made before its device was calibrated is shown with the device's stored calibration.
    """
    from ..config import find_project
    from ..store.calibration_note import with_calibration
    from ..store.files import write_file
    from ..store.finding import find_run
    from ..store.run_folder import read_run

    if form is Format.PAGES and out is None:
        raise UsageError("--format pages: writes several files; say into which folder with --out DIR")
    project = find_project()
    record = with_calibration(read_run(find_run(run, project)), project.results)
    if out is None:
        typer.echo(_render(record, form), nl=False)
        return
    files = {out: _render(record, form).encode()} if form is not Format.PAGES else _pages(record, out)
    for file, content in files.items():
        try:
            write_file(file, content)
        except OSError as error:
            raise UsageError(f"--out {out}: {file} cannot be written: {error.strerror or error}") from error
    typer.echo(f"wrote {out}" if form is not Format.PAGES else f"wrote {len(files)} files into {out}", err=True)


def _pages(run: Run, folder: Path) -> dict[Path, bytes]:
    from ..report.pages import suite_pages

    return {folder / name: content for name, content in suite_pages(run).items()}


def _render(run: Run, form: Format) -> str:
    if form is Format.HTML:
        from ..report.html import html_report

        return html_report(run)
    if form is Format.JUNIT:
        from ..report.junit import junit_xml

        return junit_xml(run)
    if form is Format.GITHUB:
        from ..report.github import github_annotations

        return github_annotations(run)
    from ..report.markdown import markdown_report

    return markdown_report(run)
