"""One page about a run for a pull request: verdict, regressions and how to reproduce them, the table of cases, savings; the rest folded.

A comment on GitHub holds 65 536 characters, so the page is fitted: every section has shorter versions, and the least important section
is shortened first.  The HTML report holds everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...schema import CaseSummary, Result, Run, SuiteSummary, VerdictKind
from ...stats.weighted import BEST_FUSED, best_fused
from .. import escape
from ..evidence.attached import attached_to
from ..fitting import Lines, Section, fitted, fixed, folded
from ..wording import (
    DASH,
    ERROR_MEANING,
    cases_with_results,
    count,
    error_ratio,
    excuses,
    failure_reason,
    microseconds,
    named_cases,
    part_notes,
    share,
    share_of_limit,
    short_kernel,
    speedup,
    status_text,
    tallied,
    with_spread,
)
from .markdown import environment_table, evidence_markdown, markdown_table
from .rows import outcome
from .savings import compiled_lines, saving_of, signed
from .summary import (
    absent_line,
    headline,
    method_lines,
    needing_attention,
    reproduce,
    suspicions,
    verdict_line,
    warnings_told,
)

LIMIT = 60_000
"""Characters of a page; GitHub's limit for a comment is 65 536."""
ONE_OP_LIMIT = 4_000
"""Characters of a page about one op."""
MOST_OPEN_CASES = 40
"""Cases whose tables stand open; the tables of a larger run are folded by suite."""
CASE_HEADER = ("case", "shape", "split us", "fused us", "kernel", "speedup [95 % CI]", "SOL", "error", "verdict")
_NO_FUSED = {"fused us": "best other us"}
"""Columns of a suite without a timed fused kernel."""
SUITE_HEADER = ("suite", "cases", "weighted speedup", "split us per step", "saved us per step", "saved")


def pull_request_page(run: Run, *, plot: str = "") -> str:
    """The page as GitHub-flavoured Markdown, at most `ONE_OP_LIMIT` characters for a run of one op, else `LIMIT`.

    `plot` is a picture's path relative to the page; empty for none.
    """
    run = escape.cleaned(run)
    limit = ONE_OP_LIMIT if len({summary.case.op for summary in run.cases}) == 1 else LIMIT
    sections = list(_sections(run, plot))
    return fitted(sections, limit, cut="The HTML report holds the rest.")


def _sections(run: Run, plot: str) -> Iterator[Section]:
    attention = needing_attention(run)
    failed = [one for one in attention if one[0] in (VerdictKind.ERROR, VerdictKind.REGRESSION)]
    others = [one for one in attention if one not in failed]
    yield fixed(_head(run))
    yield Section(4, [_with(_notices, run, most) for most in (8, 3, 1)])
    yield Section(9, [_shortened(_findings, failed, most) for most in (40, 12, 4, 1)])
    yield Section(3, [_shortened(_open_questions, others, most) for most in (12, 3, 0)])
    yield Section(8, [_with(_tables, run, most) for most in (10_000, 24, 8, 4, 0)])
    yield Section(7, [_with(_suites, run, most) for most in (60, 12, 0)])
    if plot and any(result.measurement is not None for result in run.results):
        yield fixed([f"![Speedup and share of the speed of light]({plot})"])
    yield Section(5, [_with(_notes, run, limit) for limit in (2_000, 300)])
    yield Section(6, [lambda: evidence_markdown(attached_to(run)), list])
    yield Section(2, [_with(_left_out, run, most) for most in (12, 0)])
    yield Section(1, [lambda: folded("Environment and method", [*environment_table(run), "", *_method(run)]), lambda: _method(run)[-1:]])
    yield fixed(["To reproduce:", "", *escape.code_block(escape.one_line(run.command, 600))])


def _with(make: Callable[[Run, int], Lines], run: Run, most: int) -> Callable[[], Lines]:
    return lambda: make(run, most)


Found = list[tuple[VerdictKind, Result]]


def _shortened(make: Callable[[Found, int], Lines], found: Found, most: int) -> Callable[[], Lines]:
    return lambda: make(found, most)


def _head(run: Run) -> Lines:
    return [f"# {verdict_line(run)}", "", f"{escape.markdown(headline(run))} · run {escape.markdown(run.id)} · commit {_commit(run)}"]


def _notices(run: Run, most: int) -> Lines:
    """Notices before the figures: incompleteness, a timer fallback, cases that were not cold, warnings."""
    notices = [] if run.complete else ["Incomplete run: not every case was measured, or not every suspect remeasured"]
    notices += [f"Timer fallback: {run.timer_fallback}"] if run.timer_fallback else []
    notices += [f"Not cold: case {one.case.key}: {one.not_cold}" for one in run.cases if one.not_cold]
    notices += [f"Suspicious: {text}" for text in suspicions(run)]
    notices += [f"Warning: {warning}" for warning in warnings_told(run)]
    shown = [f"> {escape.markdown(escape.one_line(notice, 300 if most > 3 else 140))}" for notice in notices[:most]]
    shown += [f"> and {len(notices) - most} more"] if len(notices) > most else []
    return [line for one in shown for line in (one, ">")][:-1]


def _commit(run: Run) -> str:
    commit = run.environment.git_commit[:12] or "unknown"
    return escape.markdown(commit) + (" with uncommitted changes" if run.environment.git_dirty else "")


def _findings(found: Found, most: int) -> Lines:
    """Failures and regressions, each with its reason and the command that reproduces it."""
    if not found:
        return []
    lines = ["## Regressions and failures", ""]
    for kind, result in found[:most]:
        aside = "" if result.gating else " (advisory)"
        reason = result.verdict.reason if result.verdict is not None else failure_reason(result)
        lines.append(f"* **{kind}**{aside} {_named(result)}: {escape.markdown(escape.one_line(reason or str(kind), 240))}  ")
        lines.append(f"  {escape.code(reproduce(result))}")
    return lines + ([f"* and {len(found) - most} more"] if len(found) > most else [])


def _open_questions(found: Found, most: int) -> Lines:
    """Results that nothing was concluded about; those with the same reason are one line."""
    if not found:
        return []
    groups: dict[tuple[VerdictKind, bool, str], list[Result]] = {}
    for kind, result in found:
        groups.setdefault((kind, result.gating, result.verdict.reason if result.verdict is not None else ""), []).append(result)
    lines = [
        f"* {kind}{'' if gating else ' (advisory)'} {_named(results[0])}"
        f"{f' and {len(results) - 1} more' if len(results) > 1 else ''}: {escape.markdown(escape.one_line(reason, 160))}"
        for (kind, gating, reason), results in list(groups.items())[:most]
    ]
    title = f"{count(len(found), 'result')} undecided or incomparable"
    lines += [f"* and {len(groups) - most} more"] if lines and len(groups) > most else []
    return folded(title, lines) if lines else [f"* {title}"]


def _named(result: Result) -> str:
    return f"{escape.code(result.kernel)} on {escape.markdown(result.case_key)}"


def _tables(run: Run, most: int) -> Lines:
    """A table per suite, with at most `most` cases each."""
    suites = {summary.name: summary for summary in run.suites}
    blocks: dict[str, list[tuple[CaseSummary, list[Result]]]] = {}
    for summary, results in cases_with_results(run):
        blocks.setdefault(summary.case.suite, []).append((summary, results))
    closed = len(run.cases) > MOST_OPEN_CASES
    lines: Lines = []
    for name, cases in blocks.items():
        fused = any(best_fused(rows) is not None for _, rows in cases)
        header = CASE_HEADER if fused else [_NO_FUSED.get(title, title) for title in CASE_HEADER]
        table = markdown_table(header, [_row(summary, rows) for summary, rows in cases[:most]], right_from=2) if most else []
        table += [f"| {count(len(cases) - most, 'case')} more in the HTML report |{' |' * 8}"] if 0 < most < len(cases) else []
        title = f"{escape.markdown(name)}: {count(len(cases), 'case')}{_weighted(suites.get(name))}{_tally(cases)}"
        lines += [*folded(title, table), ""] if closed else [f"## {title}", "", *table, ""]
    return [*lines, f"{ERROR_MEANING}." if lines else ""]


def _weighted(suite: SuiteSummary | None) -> str:
    value = suite.weighted_speedup.get(BEST_FUSED) if suite is not None else None
    return "" if value is None else f", weighted speedup {value:.3f}x"


def _tally(cases: Sequence[tuple[CaseSummary, list[Result]]]) -> str:
    kinds = [result.verdict.kind for _, rows in cases for result in rows if result.verdict is not None and result.gating]
    found = tallied(kind for kind in kinds if kind is not VerdictKind.PASS)
    return f", {found}" if found else ""


def _row(summary: CaseSummary, rows: list[Result]) -> list[str]:
    """The split chain and the best fused kernel; the best other kernel where no fused one was timed."""
    baseline = next((row for row in rows if row.kernel == summary.baseline), None)
    split = with_spread(baseline.measurement.time_us) if baseline is not None and baseline.measurement is not None else DASH
    others = [row for row in rows if row.measurement is not None and row.kernel != summary.baseline and not row.covers]
    best = best_fused(rows) or next(iter(others), None)
    if best is None or best.measurement is None:
        return [summary.case.name, summary.shape, split, *[DASH] * 6]
    timing = best.measurement
    good = best.verdict is None or best.verdict.kind in (VerdictKind.PASS, VerdictKind.IMPROVEMENT)
    return [
        summary.case.name,
        summary.shape,
        split,
        with_spread(timing.time_us),
        escape.code(short_kernel(best.kernel)),
        speedup(timing.speedup),
        share_of_limit(timing.sol),
        error_ratio(best.accuracy),
        outcome(best) if good else escape.Markup(f"**{escape.cell(outcome(best))}**"),
    ]


def _suites(run: Run, most: int) -> Lines:
    """Weighted speedups and microseconds per denoise step."""
    rows = []
    for suite in run.suites:
        weighted, saving = suite.weighted_speedup.get(BEST_FUSED), saving_of(run, suite)
        if weighted is None:
            continue
        covered = suite.covered_cases[BEST_FUSED]
        cells = [suite.name, str(suite.cases) if covered == suite.cases else f"{covered} of {suite.cases}", f"{weighted:.3f}x"]
        cells += [DASH] * 3 if saving is None else [
            microseconds(saving.baseline_us), signed(saving.saved_us), share(saving.saved_us / saving.baseline_us),
        ]  # fmt: skip
        rows.append(cells)
    if not rows or not most:
        return []
    title = "## Weighted speedups of the best fused kernels, and microseconds per denoise step"
    more = ["", f"and {count(len(rows) - most, 'suite')} more in the HTML report"] if len(rows) > most else []
    return [title, "", *markdown_table(SUITE_HEADER, rows[:most]), *more]


def _notes(run: Run, limit: int) -> Lines:
    notes = [*compiled_lines(run), *part_notes(run), *([line] if (line := absent_line(run)) else [])]
    return [f"* {escape.markdown(escape.one_line(note, limit))}" for note in notes]


def _left_out(run: Run, most: int) -> Lines:
    """Kernels without a time for another reason than that they cannot run here, which `absent_line` says of all in one."""
    listed = [one for one in excuses(run) if status_text(one.status) in ("not measured", "unsupported")]
    lines = [
        f"* {escape.code(one.kernel)} on {escape.markdown(named_cases(one, len(run.cases)))}: {status_text(one.status)}: "
        f"{escape.markdown(escape.one_line(one.reason or 'no reason recorded', 160))}"
        for one in listed[:most]
    ]
    lines += [f"* and {len(listed) - most} more"] if most and len(listed) > most else []
    return folded("Kernels without a time", lines) if lines else []


def _method(run: Run) -> Lines:
    return [f"* {escape.markdown(line)}" for line in method_lines(run)]
