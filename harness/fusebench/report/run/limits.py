"""How near the best fused kernels come to the limit, case by case: `fusebench report RUN --format limits`.

The share of a case is that of its fastest fused kernel: the case's limit over the kernel's time.  A case that equals another one in op and
parameters counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from ...schema import FAILED_STATUSES, CaseSummary, Measurement, Result, Run
from ...stats.weighted import best_fused
from ...verdict.dispatch_choice import CLOSE, dispatch_ratio, shares
from .. import escape
from ..wording import (
    DASH,
    cases_with_results,
    count,
    limit,
    listed_excuses,
    named_cases,
    share,
    short_kernel,
    speedup,
    status_text,
    times,
    with_spread,
)
from .markdown import environment_table, markdown_table, notice_lines
from .savings import dispatch_lines
from .summary import headline, method_lines

LEVELS = (0.95, 0.90, 0.80)
"""Shares of the limit whose cases are counted."""
LOWEST = 10
"""Cases that the page names above its folds."""
LONG_US = 10.0
"""Calls from this time on have a row of their own: in shorter ones the launch and memory's latency count."""


def percent(level: float) -> str:
    """`90 %`."""
    return f"{100 * level:.0f} %"


_LEVEL_COLUMNS = tuple(f"≥ {percent(level)}" for level in LEVELS)
_HEADER = ("op", "cases", *_LEVEL_COLUMNS, "median", "lowest", "median speedup")
_DISPATCH = (f"dispatch / best ≤ {CLOSE:.2f}", "worst")
_CASE_HEADER = ("case", "shape", "kernel", "us", "limit us", "of the limit", "speedup [95 % CI]", "dispatch / best")


class Reached(msgspec.Struct, frozen=True):
    """A case and its fastest fused kernel."""

    summary: CaseSummary
    best: Result
    timing: Measurement
    share: float
    """The limit over the kernel's time."""
    dispatched: float | None
    """Time of the kernel that dispatch takes over the time of the best; None where the record does not say."""


def reached_cases(run: Run) -> list[Reached]:
    """Every different case with a limit and a timed fused kernel, the lowest share first."""
    found = []
    for summary, rows in cases_with_results(run):
        best = best_fused(rows)
        if summary.same_as or best is None or best.measurement is None or best.measurement.sol is None:
            continue
        choice = dispatch_ratio(summary, rows)
        found.append(Reached(summary, best, best.measurement, best.measurement.sol, choice.ratio if choice is not None else None))
    return sorted(found, key=lambda one: one.share)


def limits_markdown(run: Run, *, picture: str = "") -> str:
    """The page as GitHub-flavoured Markdown.  `picture` is the path of `limits_png`'s file relative to the page; empty for none."""
    run = escape.cleaned(run)
    cases = reached_cases(run)
    lines = [f"# Share of the limit: {escape.markdown(headline(run))}", "", *notice_lines(run), "", *environment_table(run), ""]
    if cases:
        lines += [f"**{escape.markdown(_conclusion(cases))}.**", "", *_op_table(cases), ""]
        lines += ["A case counts with its fastest fused kernel. Speedups are over the split chain.", ""]
        lines += [f"![Share of the limit by op, a mark per case]({picture})", ""] if picture else []
        lines += ["## Lowest cases", "", *_case_table(cases[:LOWEST]), ""]
        lines += [f"{escape.markdown(line)}.\n" for line in dispatch_lines(run)]
    else:
        lines += ["No fused kernel was timed beside a limit.", ""]
    lines += [*_untimed(run, cases), *_failed(run)]
    if len(cases) > LOWEST:
        lines += ["<details>", "<summary>Every case, the lowest first</summary>", "", *_case_table(cases), "", "</details>", ""]
    lines += ["## How this was measured", "", *(f"* {escape.markdown(line)}" for line in method_lines(run)), "", "To reproduce:", ""]
    lines += escape.code_block("\n".join([*_drawn_by(run), run.command]))
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def by_op(cases: Iterable[Reached]) -> dict[str, list[Reached]]:
    """The cases of each op, ops in alphabetical order."""
    found: dict[str, list[Reached]] = {}
    for one in sorted(cases, key=lambda one: one.summary.case.op):
        found.setdefault(one.summary.case.op, []).append(one)
    return found


def at_least(cases: Sequence[Reached], level: float) -> float:
    """The share of the cases that reach `level` of the limit."""
    return sum(one.share >= level for one in cases) / len(cases)


def _conclusion(cases: Sequence[Reached]) -> str:
    """`Of 200 cases, 71.0 % reach 95 % of the limit, 93.5 % reach 90 %, 100.0 % reach 80 %; the lowest reaches 81.2 % (4096x3072 bf16)`."""
    first, *others = (f"{share(at_least(cases, level))} reach {percent(level)}" for level in LEVELS)
    said = ", ".join((f"{first} of the limit", *others))
    return f"Of {count(len(cases), 'case')}, {said}; the lowest reaches {share(cases[0].share)} ({cases[0].summary.shape})"


def _op_table(cases: Sequence[Reached]) -> list[str]:
    groups = by_op(cases)
    groups |= {"all": list(cases)} if len(groups) > 1 else {}
    long = [one for one in cases if one.timing.time_us.value >= LONG_US]
    groups |= {f"{LONG_US:.0f} us and more": long} if 0 < len(long) < len(cases) else {}
    known = any(one.dispatched is not None for one in cases)  # on a GPU alone
    rows = [(*_op_row(name, some), *(_dispatch_cells(some) if known else ())) for name, some in groups.items()]
    return markdown_table((*_HEADER, *(_DISPATCH if known else ())), rows)


def _op_row(name: str, cases: Sequence[Reached]) -> tuple[str, ...]:
    speedups = [one.timing.speedup.value for one in cases if one.timing.speedup is not None]
    return (
        name,
        str(len(cases)),
        *(share(at_least(cases, level)) for level in LEVELS),
        share(median(one.share for one in cases)),
        share(min(one.share for one in cases)),
        times(median(speedups)) if speedups else DASH,
    )


def _dispatch_cells(cases: Sequence[Reached]) -> tuple[str, str]:
    ratios = [one.dispatched for one in cases if one.dispatched is not None]
    return (share(shares(ratios)[0]), times(max(ratios))) if ratios else (DASH, DASH)


def _case_table(cases: Sequence[Reached]) -> list[str]:
    several = len({one.summary.case.suite for one in cases}) > 1
    rows = [
        (
            one.summary.case.key if several else one.summary.case.name,
            one.summary.shape,
            escape.code(short_kernel(one.best.kernel)),
            with_spread(one.timing.time_us),
            limit(one.summary),
            share(one.share),
            speedup(one.timing.speedup),
            times(one.dispatched),
        )
        for one in cases
    ]
    kept = len(_CASE_HEADER) - all(one.dispatched is None for one in cases)
    return markdown_table(_CASE_HEADER[:kept], [row[:kept] for row in rows], right_from=3)


def _untimed(run: Run, cases: Sequence[Reached]) -> list[str]:
    """The cases that are not in the figures."""
    known = {one.summary.case.key for one in cases}
    names = [f"{one.case.name} ({one.shape})" for one in run.cases if not one.same_as and one.case.key not in known]
    if not names:
        return []
    return [
        "## Cases without a time",
        "",
        "No fused kernel was timed beside a limit:",
        "",
        *(f"* {escape.markdown(one)}" for one in names),
        "",
    ]


def _failed(run: Run) -> list[str]:
    lines = [
        f"* {escape.code(one.kernel)} on {escape.markdown(named_cases(one, len(run.cases)))}: {status_text(one.status)}: "
        f"{escape.markdown(one.reason or 'no reason recorded')}"
        for one in listed_excuses(run)
        if one.status in FAILED_STATUSES
    ]
    return ["## Kernels that failed", "", *lines, ""] if lines else []


def _drawn_by(run: Run) -> list[str]:
    """The commands that drew the cases, where their source is one."""
    return list(dict.fromkeys(one.case.source for one in run.cases if one.case.source.startswith("fusebench suite random ")))
