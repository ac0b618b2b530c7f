"""Reports as files: the two beside every run record, and a folder of pages with one report and picture per suite."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...schema import Run
from ...stats.weighted import BEST_FUSED
from ...store.baselines import VIEWS
from ...store.files import write_file
from .. import escape
from ..plots.speedup import speedup_png
from ..wording import DASH
from .markdown import environment_table, markdown_report, markdown_table, notice_lines
from .pull_request import pull_request_page
from .savings import SAVING_HEADER, compiled_lines, saving_rows
from .summary import calibration_line, headline, spending_lines

INDEX = "README.md"


def suite_pages(run: Run, *, pictures: bool = True) -> dict[str, bytes]:
    """File names and contents: `README.md`, and `<suite>.md` and `<suite>.png` for every suite, slashes written as underscores.

    Args:
        pictures: make the pictures too, which take most of the time; the pages show them either way.
    """
    run = escape.cleaned(run)
    suites = list(dict.fromkeys(summary.case.suite for summary in run.cases))
    pages = {INDEX: _index(run, suites).encode()}
    for suite in suites:
        part = only_suite(run, suite)
        name = escape.file_name(suite)
        pages[f"{name}.md"] = markdown_report(part, plot=f"{name}.png").encode()
        if pictures:
            pages[f"{name}.png"] = speedup_png(part)
    return pages


def only_suite(run: Run, suite: str) -> Run:
    """The run's record with the cases and results of one suite, without the warnings about the whole run and the time spent on it."""
    results = [result for result in run.results if result.suite == suite]
    kernels = {result.kernel for result in results}
    return msgspec.structs.replace(
        run,
        suites=[summary for summary in run.suites if summary.name == suite],
        cases=[summary for summary in run.cases if summary.case.suite == suite],
        kernels=[kernel for kernel in run.kernels if kernel.id in kernels],
        results=results,
        warnings=[],
        spending=None,
    )


def _index(run: Run, suites: list[str]) -> str:
    warned = msgspec.structs.replace(run, cases=[])  # a suite's own page names its cases that were not cold
    notices = [line for one in notice_lines(warned) for line in (one, ">")][:-1]
    lines = [f"# {escape.markdown(headline(run))}", "", *notices, "", *environment_table(run), ""]
    if rows := saving_rows(run):
        lines += ["## Microseconds saved per denoise step", "", *markdown_table(SAVING_HEADER, rows), ""]
    lines += ["## Suites", "", *markdown_table(("suite", "cases", "weighted speedup of the best fused kernels"), _rows(run, suites)), ""]
    lines += [f"{escape.markdown(line)}.\n" for line in (*compiled_lines(run), calibration_line(run), *spending_lines(run))]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _rows(run: Run, suites: list[str]) -> list[tuple[str, ...]]:
    summaries = {summary.name: summary for summary in run.suites}
    rows: list[tuple[str, ...]] = []
    for suite in suites:
        cases = sum(summary.case.suite == suite for summary in run.cases)
        speedup = summaries[suite].weighted_speedup.get(BEST_FUSED) if suite in summaries else None
        rows.append(
            (
                escape.Markup(f"[{escape.markdown(suite)}]({escape.file_name(suite)}.md)"),
                str(cases),
                DASH if speedup is None else f"{speedup:.3f}x",
            )
        )
    return rows


def write_views(run: Run, folder: Path) -> list[Path]:
    """Make the run's report and plot in its folder, replacing any that are there, and return their paths."""
    report, plot = (folder / name for name in VIEWS)
    write_file(plot, speedup_png(run))
    write_file(report, pull_request_page(run, plot=plot.name).encode())
    return [report, plot]
