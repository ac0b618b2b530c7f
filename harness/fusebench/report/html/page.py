"""A run as one self-contained HTML file: no network, no library; tables that sort and filter, charts as SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...schema import CaseSummary, Result, Run, Status, VerdictKind
from ...stats.weighted import BEST_FUSED
from .. import escape
from ..evidence.attached import attached_to, grouped
from ..history import History
from ..run.rows import bandwidth, outcome
from ..run.savings import SAVING_HEADER, compiled_lines, saving_rows
from ..run.summary import (
    absent_line,
    headline,
    method_lines,
    needing_attention,
    reproduce,
    verdict_line,
)
from ..versions import ONE_VERSION, version_steps
from ..wording import (
    DASH,
    ERROR_MEANING,
    cases_with_results,
    count,
    error_ratio,
    failure_reason,
    interval,
    listed_excuses,
    microseconds,
    named_cases,
    part_notes,
    share,
    share_of_limit,
    short_kernel,
    status_text,
    tallied,
    with_spread,
)
from .charts import Spread, best_of_each, history_caption, history_line, legend, roofline, small_bar, small_box, speedup_bars, version_bars

if TYPE_CHECKING:
    import pandas

MOST_HISTORY_LINES = 60
"""Series drawn on a page: series that moved first; the site has a page for every series."""

Spreads = Mapping[tuple[str, str], Spread]
"""By case key and kernel id."""


class Section(msgspec.Struct, frozen=True):
    """One suite: an op's, or a model's."""

    anchor: str
    name: str
    kind: str
    cases: int
    rows: list[list[str]]
    """Cells of HTML, in the order of the template's columns."""
    verdicts: str
    chart: str


def html_report(
    run: Run, *, samples: pandas.DataFrame | None = None, history: History | None = None, raw: Mapping[str, str] | None = None
) -> str:
    """The page.  Whatever the record holds (reasons, names) is escaped.

    Args:
        samples: the run's raw samples; without them the tables have no distribution of times.
        history: series that the page draws; without one it has no such section.
        raw: links to the run's files, by their names.
    """
    run = escape.cleaned(run)
    spreads = spreads_of(samples) if samples is not None else {}
    blocks = list(cases_with_results(run))
    bytes_of = {summary.case.key: summary.minimum_bytes for summary in run.cases}
    timed = [result for result in run.results if result.measurement is not None and not result.covers]
    weighted = list(dict.fromkeys([BEST_FUSED, *(kernel for suite in run.suites for kernel in suite.weighted_speedup)]))
    page: str = (
        environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            verdict=verdict_line(run),
            headline=headline(run),
            attention=[_attention(kind, result) for kind, result in needing_attention(run)],
            weighted_header=("suite", *(kernel.replace("_", " ") if kernel == BEST_FUSED else kernel for kernel in weighted)),
            weighted=_weighted_rows(run, weighted),
            saving_header=SAVING_HEADER,
            savings=saving_rows(run),
            sections=_sections(blocks, spreads),
            bars=speedup_bars(best_of_each((summary.case.key, rows) for summary, rows in blocks)),
            versions=version_bars(version_steps(run)),
            one_version=ONE_VERSION,
            roofline=roofline([(bytes_of[result.case_key], result) for result in timed if result.case_key in bytes_of]),
            legend=legend(timed),
            history=_history(history),
            evidence=grouped(attached_to(run)),
            parts=part_notes(run),
            compiled=compiled_lines(run),
            absent=absent_line(run),
            excuses=[(one, named_cases(one, len(run.cases)), status_text(one.status)) for one in listed_excuses(run)],
            facts=facts(run),
            method=[
                *method_lines(run),
                ERROR_MEANING,
                *(
                    ["calls: box from 25 to 75 %, whiskers from 5 to 95 % of the timed calls, on an axis of ±5 % about the median"]
                    * bool(spreads)
                ),
            ],
            distributions=bool(spreads),
            raw=dict(raw or {}),
            case_count=count(len(run.cases), "case"),
        )
    )
    return page


def environment() -> Any:
    """jinja2's environment for the templates of this package: everything is escaped unless a chart made it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("fusebench.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters["breakable"] = _breakable
    return found


def _breakable(foreign: str) -> Any:
    """`foreign`, escaped, with places where a narrow screen may break an identifier: a word is never cut elsewhere if that is enough."""
    from markupsafe import Markup

    return Markup(re.sub(r"(?<=\w)([/_:@])(?=\w)", r"\1<wbr>", escape.html(foreign)))


def facts(run: Run) -> list[tuple[str, str]]:
    """What the figures depend on besides the code."""
    found = run.environment
    commit = found.git_commit[:12] + (" with uncommitted changes" if found.git_dirty else "")
    pairs = (
        ("device", found.device_name), ("driver", found.driver), ("CUDA", found.cuda), ("torch", found.torch), ("triton", found.triton),
        ("ptxas", found.ptxas), ("python", found.python), ("platform", found.platform),
        ("CPU", f"{found.cpu} x {found.cpu_count}" if found.cpu else ""), ("fusebench", found.fusebench), ("commit", commit.strip()),
        ("run", run.id), ("created", run.created), ("timer", run.timer), ("cache", str(run.plan.cache)), ("command", run.command),
    )  # fmt: skip
    return [(name, value) for name, value in pairs if value]


def spreads_of(samples: pandas.DataFrame) -> dict[tuple[str, str], Spread]:
    """Quantiles of every arm's timed calls, by case key and arm."""
    import numpy

    quantiles = samples.groupby(["case", "arm"]).span_ns.quantile(numpy.array([0.05, 0.25, 0.5, 0.75, 0.95])).unstack() / 1000.0
    return {(str(case), str(arm)): Spread(*map(float, row)) for (case, arm), row in zip(quantiles.index, quantiles.to_numpy(), strict=True)}


def _sections(blocks: Sequence[tuple[CaseSummary, list[Result]]], spreads: Spreads) -> list[Section]:
    suites: dict[str, list[tuple[CaseSummary, list[Result]]]] = {}
    for summary, rows in blocks:
        suites.setdefault(summary.case.suite, []).append((summary, rows))
    fastest = [row.measurement.speedup.value for _, rows in blocks for row in rows if row.measurement and row.measurement.speedup]
    top = max((value for value in fastest if math.isfinite(value)), default=1.0)
    found = []
    for place, (name, cases) in enumerate(suites.items()):
        shown = [(summary, row) for summary, results in cases for row in results if row.status is not Status.NOT_RUNNABLE]
        cells = [_row(summary, row, spreads.get((summary.case.key, row.kernel)), min(top, 4.0)) for summary, row in shown]
        kinds = [outcome(row) for _, row in shown]
        counted = tallied(kinds, dict.fromkeys(kinds))
        chart = speedup_bars(best_of_each((summary.case.name, results) for summary, results in cases))
        found.append(Section(f"suite-{place}", name, "model" if "/" in name else "op", len(cases), cells, counted, chart))
    return found


def _weighted_rows(run: Run, kernels: Sequence[str]) -> list[list[str]]:
    """A row per suite, with the number of cases where a kernel covers fewer than all."""
    rows = []
    for suite in run.suites:
        row = [suite.name]
        for kernel in kernels:
            value, covered = suite.weighted_speedup.get(kernel), suite.covered_cases.get(kernel, suite.cases)
            part = "" if covered == suite.cases else f" ({covered} of {suite.cases} cases)"
            row.append(DASH if value is None else f"{value:.3f}x{part}")
        if suite.weighted_speedup:
            rows.append(row)
    return rows


def _row(summary: CaseSummary, row: Result, spread: Spread | None, top: float) -> list[str]:
    timing, kind = row.measurement, row.verdict.kind if row.verdict is not None else None
    box = small_box(spread) if spread is not None and spread.median > 0 else ""
    cells = [escape.html(row.case), escape.html(short_kernel(row.kernel)), str(row.role)]
    if timing is None:
        cells += [DASH] * 6
    else:
        speedup = DASH
        if timing.speedup is not None:
            speedup = f"{small_bar(timing.speedup, top)}{timing.speedup.value:.2f}x {interval(timing.speedup)}"
        cells += [
            f"{with_spread(timing.time_us)}{box}",
            speedup,
            share_of_limit(timing.sol),
            share(timing.peak_share),
            bandwidth(timing.gb_per_s),
            microseconds(timing.host_us),
        ]
    cells.append(error_ratio(row.accuracy))
    reason = (row.verdict.reason if row.verdict is not None else "") or row.reason
    title = f' title="{escape.html(reason)}"' if reason and kind is not VerdictKind.PASS else ""
    mark = kind if kind is not None else "none"
    return [*cells, f'<span class="v {mark}"{title}>{escape.html(outcome(row))}</span>', escape.html(summary.shape)]


def _attention(kind: VerdictKind, result: Result) -> dict[str, str | bool]:
    reason = (result.verdict.reason if result.verdict is not None else "") or failure_reason(result)
    return {
        "kind": str(kind) + ("" if result.gating else ", advisory"), "advisory": not result.gating,
        "mark": str(kind), "kernel": result.kernel, "case": result.case_key,
        "reason": escape.one_line(reason or "no reason recorded"), "command": reproduce(result),
    }  # fmt: skip


def _history(history: History | None) -> list[tuple[str, str, bool]]:
    """Drawing, caption, and whether it has a change point; the series with a slower newest level first."""
    if history is None or not history.runs:
        return []
    history = escape.cleaned(history)
    tracks = sorted(history.tracks, key=lambda track: (not track.newest_slower, not track.shifts))
    return [
        (history_line(history, track), history_caption(track), bool(track.shifts))
        for track in tracks[:MOST_HISTORY_LINES]
        if track.series.values
    ]
