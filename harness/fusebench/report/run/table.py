"""The terminal table of a run: one block per case, then weighted speedups and the kernels without a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ...schema import FAILED_STATUSES, OUTSIDE_CONTRACT, CaseSummary, Measurement, Result, Run, Status, VerdictKind
from ...verdict.dispatch_choice import dispatch_ratios
from ...verdict.margins.words import own_coverage
from .. import escape
from ..evidence.attached import attached_to, evidence_parts
from ..wording import (
    DASH,
    cases_with_results,
    error_ratio,
    limit,
    listed_excuses,
    microseconds,
    named_cases,
    part_notes,
    share_of_limit,
    short_kernel,
    size,
    speedup,
    status_text,
    times,
    verdict_notes,
    with_spread,
)
from .rows import bandwidth, launches, outcome
from .savings import compiled_lines, dispatch_lines, saving_lines, weighted_lines
from .summary import absent_line, calibration_line, control_line, headline, sampling, spending_lines, suspicions, warnings_told

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

VERDICT_STYLES = {
    VerdictKind.PASS: "green",
    VerdictKind.IMPROVEMENT: "bold green",
    VerdictKind.REGRESSION: "bold red",
    VerdictKind.UNDECIDED: "yellow",
    VerdictKind.INCOMPARABLE: "yellow",
    VerdictKind.ERROR: "bold red",
}


class _Column(msgspec.Struct, frozen=True):
    title: str
    cell: Callable[[Result], str]
    dispensable: int = 0
    """Columns with the highest number go first where the terminal is too narrow; 0 stays."""
    right: bool = True


def print_run(run: Run, console: Console) -> None:
    """Print the run's table and its summary, fitted to the console's width."""
    for part in run_parts(run, console):
        console.print(part)


def run_parts(run: Run, console: Console) -> list[RenderableType]:
    """The parts that `print_run` prints, in order."""
    from rich.text import Text

    run = escape.cleaned(run)
    parts: list[RenderableType] = [Text(f"{headline(run)} · {sampling(run)}", style="bold")]
    if run.timer_fallback:
        parts.append(Text(f"timer fallback: {run.timer_fallback}", style="yellow"))
    parts += _lines(run, console.width)
    parts += [Text(line) for line in (*weighted_lines(run), *saving_lines(run), *compiled_lines(run), *dispatch_lines(run))]
    if line := control_line(run):
        parts.append(Text(line))
    if line := absent_line(run):
        parts.append(Text(line, style="dim"))
    for excuse in listed_excuses(run):
        style = "red" if excuse.status in FAILED_STATUSES else "dim"
        where = named_cases(excuse, len(run.cases))
        parts.append(
            Text(f"{excuse.kernel} on {where}: {status_text(excuse.status)}: {excuse.reason or 'no reason recorded'}", style=style)
        )
    parts += [Text(note, style="dim") for note in part_notes(run)]
    parts += [Text(note, style=VERDICT_STYLES[kind]) for kind, note in verdict_notes(run)]
    parts += evidence_parts(attached_to(run))
    parts.append(Text(own_coverage(run), style="dim"))
    parts.append(Text(calibration_line(run), style="dim" if run.calibration is not None else "yellow"))
    parts += [Text(line, style="dim") for line in spending_lines(run)]
    parts += [Text(f"not cold: case {one.case.key}: {one.not_cold}", style="bold red") for one in run.cases if one.not_cold]
    parts += [Text(f"suspicious: {text}", style="bold red") for text in suspicions(run)]
    parts += [Text(f"warning: {warning}", style="yellow") for warning in warnings_told(run)]
    if not run.complete:
        parts.append(Text("this run is incomplete: not every case was measured, or not every suspect remeasured", style="yellow"))
    return parts


def _lines(run: Run, width: int) -> list[Text]:
    """Header, then per case its own line and one line per kernel, columns aligned over all cases."""
    from rich.text import Text

    columns = _fitting_columns(run, width)
    widths = [_width(column, run) for column in columns]
    lines = [
        Text(
            _GAP.join(_aligned(column, column.title, wide) for column, wide in zip(columns, widths, strict=True)).rstrip(),
            style="underline",
        )
    ]
    for summary, rows in cases_with_results(run):
        lines.append(Text(_case_line(summary), style="bold"))
        for row in rows:
            if row.status is Status.NOT_RUNNABLE:
                continue  # one line below the table names them all
            line = Text(no_wrap=True, overflow="ellipsis")
            for column, wide in zip(columns, widths, strict=True):
                line.append(_aligned(column, column.cell(row), wide), style=_style(column, row))
                line.append(_GAP)
            line.rstrip()
            lines.append(line)
    return lines


def _fitting_columns(run: Run, width: int) -> list[_Column]:
    columns = list(_COLUMNS)
    if ratios := {(one.case, one.kernel): one.ratio for one in dispatch_ratios(run)}:
        cell = _Column("dispatch / best", lambda row: times(ratios.get((row.case_key, row.kernel))), dispensable=2)
        columns.insert(_titles(columns).index("error"), cell)
    while True:
        wanted = sum(_width(column, run) + len(_GAP) for column in columns)
        worst = max(columns, key=lambda column: column.dispensable)
        if wanted <= width + len(_GAP):
            return columns
        if worst.dispensable:
            columns.remove(worst)
        elif (replaceable := next((column for column in columns if column.title in _COMPACT), None)) is not None:
            columns[columns.index(replaceable)] = _COMPACT[replaceable.title]
        else:
            return columns


def _titles(columns: list[_Column]) -> list[str]:
    return [column.title for column in columns]


def _width(column: _Column, run: Run) -> int:
    shown = (row for row in run.results if row.status is not Status.NOT_RUNNABLE)
    return max([len(column.title), *(len(column.cell(row)) for row in shown)])


def _aligned(column: _Column, text: str, width: int) -> str:
    return text.rjust(width) if column.right else text.ljust(width)


def _case_line(summary: CaseSummary) -> str:
    measured = f" · limit {limit(summary)} us" if summary.limit_us is not None else ""
    return f"{summary.case.name} · {summary.shape}{measured}"


def _style(column: _Column, row: Result) -> str:
    if column.title == "verdict":
        return "bold red" if row.status in FAILED_STATUSES else VERDICT_STYLES[row.verdict.kind] if row.verdict is not None else "dim"
    return "" if row.status is Status.MEASURED else "dim"


def _timed(pick: Callable[[Measurement], str]) -> Callable[[Result], str]:
    return lambda row: pick(row.measurement) if row.measurement is not None else DASH


def _apart(row: Result) -> str:
    return OUTSIDE_CONTRACT if row.outside_contract else "a part"


_GAP = "  "

_COLUMNS = (
    _Column("kernel", lambda row: f"  {short_kernel(row.kernel)}", right=False),
    _Column("role", lambda row: str(row.role), dispensable=4, right=False),
    _Column("time us", _timed(lambda timing: with_spread(timing.time_us))),
    _Column("speedup [95 % CI]", _timed(lambda timing: speedup(timing.speedup))),
    _Column("SOL", _timed(lambda timing: share_of_limit(timing.sol))),
    _Column("GB/s", _timed(lambda timing: bandwidth(timing.gb_per_s)), dispensable=2),
    _Column("launches", _timed(launches), dispensable=5),
    _Column("host us", _timed(lambda timing: microseconds(timing.host_us)), dispensable=3),
    _Column("extra mem", _timed(lambda timing: size(timing.extra_memory_bytes)), dispensable=6),
    _Column("error", lambda row: error_ratio(row.accuracy), dispensable=1),
    _Column(
        "verdict",
        lambda row: outcome(row) if not row.covers else f"{status_text(row.status)}, {_apart(row)}",
        right=False,
    ),
)

_COMPACT = {
    "speedup [95 % CI]": _Column("speedup", _timed(lambda timing: DASH if timing.speedup is None else f"{timing.speedup.value:.2f}x")),
    "time us": _Column("us", _timed(lambda timing: microseconds(timing.time_us.value))),
}
"""Shorter forms, without the interval, for a terminal on which not even the columns that stay fit."""
