"""Every figure of one kernel on one case as a row of text: the full table of the Markdown and HTML reports."""

from __future__ import annotations

from ...schema import CaseSummary, Measurement, Result, Role, Run, VerdictKind
from ...verdict.dispatch_choice import DispatchRatio, dispatch_ratio
from ..wording import (
    DASH,
    cases_with_results,
    error_ratio,
    microseconds,
    part_label,
    share,
    share_of_limit,
    short_kernel,
    size,
    speedup,
    status_text,
    times,
    with_spread,
)

FULL_HEADER = (
    "case",
    "kernel",
    "role",
    "us",
    "speedup [95 % CI]",
    "SOL",
    "of peak",
    "GB/s",
    "launches",
    "gap us",
    "host us",
    "extra memory",
    "error",
    "equal to split",
    "dispatch / best",
    "verdict",
)


_NEVER_COUNT = (VerdictKind.PASS, VerdictKind.INCOMPARABLE)
"""Verdicts that never change the exit status, gating or advisory: marking them would carry no information."""


def full_row(summary: CaseSummary, row: Result, choice: DispatchRatio | None = None) -> list[str]:
    """Plain text under `FULL_HEADER`; a dash for a missing figure.

    Args:
        choice: the case's, which stands in the row of the kernel that dispatch takes.
    """
    timing, accuracy = row.measurement, row.accuracy
    role = f"{row.role}, baseline" if row.kernel == summary.baseline and row.role is not Role.SPLIT else str(row.role)
    cells = [row.case, short_kernel(row.kernel), role]
    if timing is None:
        cells += [DASH] * 9
    else:
        cells += [with_spread(timing.time_us), speedup(timing.speedup), share_of_limit(timing.sol), share(timing.peak_share)]
        cells += [bandwidth(timing.gb_per_s), launches(timing)]
        cells.append(microseconds(timing.gap_us))
        cells += [microseconds(timing.host_us), size(timing.extra_memory_bytes)]
    if accuracy is None:
        cells += [DASH] * 2
    else:
        cells += [error_ratio(accuracy), share(accuracy.equal_to_split)]
    cells.append(times(choice.ratio if choice is not None and choice.kernel == row.kernel else None))
    return [*cells, outcome(row)]


def bandwidth(gb_per_s: float) -> str:
    """GB/s with three significant digits, and no more decimals than one."""
    return f"{gb_per_s:.1f}" if gb_per_s < 100 else f"{gb_per_s:.0f}"


def launches(timing: Measurement) -> str:
    """Launches per call; a dash for a timer that cannot see them."""
    return str(timing.kernels) if timing.kernels else DASH


def suite_rows(run: Run) -> dict[str, list[list[str]]]:
    """Full rows by suite, in the run's order."""
    found: dict[str, list[list[str]]] = {}
    for summary, results in cases_with_results(run):
        choice = dispatch_ratio(summary, results)
        found.setdefault(summary.case.suite, []).extend(full_row(summary, row, choice) for row in results)
    return found


def outcome(row: Result) -> str:
    """The verdict, else the status; marked if it is advisory or the kernel covers a part of the op."""
    reached = str(row.verdict.kind) if row.verdict is not None else status_text(row.status)
    if row.verdict is not None and row.verdict.kind not in _NEVER_COUNT and not row.gating:
        reached += ", advisory"
    return f"{reached}; {part_label(row)}" if row.covers else reached
