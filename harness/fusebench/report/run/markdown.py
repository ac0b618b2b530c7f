"""report.md, in the shape that kernel pull requests use: environment, one table per suite, everything else folded below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...schema import CaseSummary, Result, Run, Status, VerdictKind
from ...stats.weighted import best_fused
from ...verdict.dispatch_choice import dispatch_ratio
from .. import escape
from ..evidence.attached import Attached, attached_to, grouped
from ..wording import (
    DASH,
    ERROR_MEANING,
    cases_with_results,
    error_ratio,
    has_limits,
    limit,
    listed_excuses,
    named_cases,
    part_notes,
    share,
    share_of_limit,
    short_kernel,
    speedup,
    status_text,
    times,
    verdict_notes,
    with_spread,
    yardsticks,
)
from .rows import FULL_HEADER, bandwidth, full_row, outcome
from .savings import SAVING_HEADER, compiled_lines, dispatch_lines, saving_rows, weighted_lines
from .summary import absent_line, calibration_line, control_line, headline, limit_lines, sampling, spending_lines, suspicions, warnings_told

if TYPE_CHECKING:
    from ...counters.records import CounterRun


def markdown_report(run: Run, *, plot: str = "speedup.png") -> str:
    """The report as GitHub-flavoured Markdown.  `plot` is the picture's path relative to the report; empty for none."""
    run = escape.cleaned(run)
    parts = [f"# {escape.markdown(headline(run))}", ""]
    parts += notice_lines(run)
    parts += ["", *environment_table(run), "", *_savings(run)]
    for name in dict.fromkeys(summary.case.suite for summary in run.cases):
        parts += _suite(run, name)
    if plot and any(result.status is Status.MEASURED for result in run.results):
        parts += [f"![Speedup and share of the speed of light]({plot})", ""]
    parts += [part for line in (*compiled_lines(run), *dispatch_lines(run)) for part in (f"{escape.markdown(line)}.", "")]
    parts += [*evidence_markdown(attached_to(run)), *_parts(run), *_left_out(run), *_everything(run), *_method(run)]
    return "\n".join(parts).replace("\n\n\n", "\n\n").rstrip() + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> list[str]:
    """Lines of a table; columns from `right_from` on are aligned right.  Cells are escaped unless they are `escape.Markup`."""
    rule = ["---" if index < right_from else "---:" for index in range(len(header))]
    return [_row(map(escape.cell, header)), _row(rule), *(_row(map(escape.cell, row)) for row in rows)]


def evidence_markdown(entries: Iterable[Attached]) -> list[str]:
    """The section with the evidence about regressions; no lines without entries."""
    lines = []
    for one in grouped(entries):
        lines += [f"### {escape.markdown(one.subject)}", "", escape.markdown(one.attachment.title), ""]
        if one.attachment.rows:
            lines += [*markdown_table(one.attachment.columns, one.attachment.rows, right_from=len(one.attachment.columns)), ""]
        lines += [f"* {escape.markdown(note)}" for note in one.attachment.notes]
        lines += [""] if one.attachment.notes else []
    return ["## Evidence for the regressions", "", *lines] if lines else []


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def notice_lines(run: Run) -> list[str]:
    """A quoted line for everything to know before the figures: incompleteness, a timer fallback, cases that were not cold, warnings."""
    return [f"> {notice}" for notice in _notices(run)]


def _notices(run: Run) -> list[str]:
    found = []
    if not run.complete:
        found.append("**Incomplete run**: not every case was measured, or not every suspect remeasured.")
    if run.timer_fallback:
        found.append(f"Timer fallback: {escape.markdown(run.timer_fallback)}.")
    found += [f"**Not cold**: case {escape.markdown(f'{one.case.key}: {one.not_cold}')}." for one in run.cases if one.not_cold]
    found += [f"**Suspicious**: {escape.markdown(text)}." for text in suspicions(run)]
    return found + [f"Warning: {escape.markdown(warning)}" for warning in warnings_told(run)]


def environment_table(run: Run | CounterRun) -> list[str]:
    """The environment as a table: everything but the code that figures depend on."""
    environment = run.environment
    commit = environment.git_commit[:12] + (" with uncommitted changes" if environment.git_dirty else "")
    named = (("ptxas", environment.ptxas), ("ptxas-blackwell", environment.ptxas_blackwell))
    assemblers = ", ".join(f"{name} {version}" for name, version in named if version)
    triton = environment.triton + (f" ({assemblers})" if assemblers else "")
    facts = (
        ("device", environment.device_name),
        ("driver, CUDA", ", ".join(part for part in (environment.driver, environment.cuda) if part)),
        ("torch, triton", ", ".join(part for part in (environment.torch, triton) if part)),
        ("python", environment.python),
        ("platform", environment.platform),
        ("CPU", f"{environment.cpu} x {environment.cpu_count}" if environment.cpu and environment.cpu_count else environment.cpu),
        ("fusebench", environment.fusebench + (f", commit {commit}" if commit.strip() else "")),
        ("run", f"{run.id}, {run.created}"),
    )
    return markdown_table(("environment", ""), [(name, value) for name, value in facts if value], right_from=2)


def _savings(run: Run) -> list[str]:
    rows = saving_rows(run)
    if not rows:
        return []
    meaning = (
        "Sums of weight x time over the cases where both the baseline and the kernel were measured, weight being launches per denoise "
        "step. Variants (tensor parallelism) are not in them."
    )
    star = ["\\* covers other cases than the best fused kernels do.", ""] if any("*" in cell for row in rows for cell in row) else []
    return ["## Microseconds saved per denoise step", "", *markdown_table(SAVING_HEADER, rows), "", meaning, "", *star]


def _suite(run: Run, name: str) -> list[str]:
    blocks = [(summary, rows) for summary, rows in cases_with_results(run) if summary.case.suite == name]
    fused = any(best_fused(rows) is not None for _, rows in blocks)
    challenger = "fused" if fused else "best other"
    header = (
        "case",
        "shape",
        "limit us" if has_limits(run) else "copy, stream us",
        "split us",
        f"{challenger} us",
        "kernel",
        "speedup [95 % CI]",
        "SOL",
        "of peak",
        "GB/s",
        "error",
        "dispatch / best",
        "verdict",
    )
    lines = [
        f"## {escape.markdown(name)}",
        "",
        *markdown_table(*_known(run, header, [_case_row(run, summary, rows, fused) for summary, rows in blocks]), right_from=2),
        "",
    ]
    baselines = ", ".join(escape.code(kernel) for kernel in dict.fromkeys(summary.baseline for summary, _ in blocks if summary.baseline))
    if baselines:
        what = "the fastest fused kernel of each case" if fused else "the fastest kernel besides it: no fused kernel was timed"
        lines += [f"split: {baselines}; {challenger}: {what}.", ""]
    for line in weighted_lines(run):
        if line.startswith(f"weighted speedup of {name}:"):
            lines += [f"**{escape.markdown(line[0].upper() + line[1:])}**", ""]
    return lines


def _known(run: Run, header: Sequence[str], rows: Iterable[Sequence[str]]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """The table, without the columns that nothing is known of on a CPU and in older records: the memory's peak and dispatch's choice."""
    known = {"of peak": run.environment.memory_gb_per_s is not None, "dispatch / best": any(one.dispatched for one in run.cases)}
    kept = [place for place, name in enumerate(header) if known.get(name, True)]
    return [header[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _case_row(run: Run, summary: CaseSummary, rows: list[Result], fused: bool) -> list[str]:
    best_time = limit(summary) if has_limits(run) else yardsticks(summary)
    baseline = next((row for row in rows if row.kernel == summary.baseline), None)
    split = with_spread(baseline.measurement.time_us) if baseline is not None and baseline.measurement is not None else DASH
    others = [row for row in rows if row.measurement is not None and row.kernel != summary.baseline and not row.covers]
    best = (
        best_fused(rows) if fused else min(others, key=lambda row: row.measurement.time_us.value if row.measurement else 0.0, default=None)
    )
    if best is None or best.measurement is None:
        return [summary.case.name, summary.shape, best_time, split, *[DASH] * 9]
    choice = dispatch_ratio(summary, rows)
    timing = best.measurement
    return [
        summary.case.name,
        summary.shape,
        best_time,
        split,
        with_spread(timing.time_us),
        escape.code(short_kernel(best.kernel)),
        speedup(timing.speedup),
        share_of_limit(timing.sol),
        share(timing.peak_share),
        bandwidth(timing.gb_per_s),
        error_ratio(best.accuracy),
        times(choice.ratio if choice is not None else None),
        _verdict(best),
    ]


def _verdict(row: Result) -> str:
    good = row.verdict is None or row.verdict.kind in (VerdictKind.PASS, VerdictKind.IMPROVEMENT)
    return outcome(row) if good else escape.Markup(f"**{escape.cell(outcome(row))}**")


def _parts(run: Run) -> list[str]:
    lines = [f"* {escape.markdown(note)}" for note in part_notes(run)]
    return ["## Kernels that cover a part of their op", "", *lines, ""] if lines else []


def _left_out(run: Run) -> list[str]:
    """Kernels that failed or were left out, one line each; one line for all that cannot run here."""
    lines = [
        f"* {escape.code(excuse.kernel)} on {escape.markdown(named_cases(excuse, len(run.cases)))}: {status_text(excuse.status)}: "
        f"{escape.markdown(excuse.reason or 'no reason recorded')}"
        for excuse in listed_excuses(run)
    ]
    lines += [f"* {escape.markdown(absent)}"] if (absent := absent_line(run)) else []
    return ["## Kernels without a time", "", *lines, ""] if lines else []


def _everything(run: Run) -> list[str]:
    blocks = list(cases_with_results(run))
    rows = [
        full_row(summary, row, dispatch_ratio(summary, results))
        for summary, results in blocks
        for row in results
        if row.status is not Status.NOT_RUNNABLE
    ]
    if not rows:
        return []
    marked = [[case, escape.code(kernel), *rest] for case, kernel, *rest in rows]
    table = markdown_table(*_known(run, FULL_HEADER, marked), right_from=3)
    return ["<details>", "<summary>Every kernel on every case</summary>", "", *table, "", *_why(run), "</details>", ""]


def _why(run: Run) -> list[str]:
    lines = [f"* {escape.markdown(note)}" for _, note in verdict_notes(run)]
    return [*lines, ""] if lines else []


def _method(run: Run) -> list[str]:
    lines = [
        "## How this was measured",
        "",
        f"* timer: {escape.markdown(run.timer)}" + (f", a fallback: {escape.markdown(run.timer_fallback)}" if run.timer_fallback else ""),
        f"* cache: {run.plan.cache} when a timed call starts",
        f"* {escape.markdown(sampling(run))}; speedups are paired within a replicate",
        *(f"* {escape.markdown(line)}" for line in limit_lines(run)),
        f"* {ERROR_MEANING}",
    ]
    if control := control_line(run):
        lines.append(f"* {escape.markdown(control)}")
    lines.append(f"* {escape.markdown(calibration_line(run))}")
    lines += [f"* {escape.markdown(line)}" for line in spending_lines(run)]
    return [*lines, "", "To reproduce:", "", *escape.code_block(run.command), ""]
