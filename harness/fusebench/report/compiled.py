"""Where torch.compile beats our best fused kernel: what a user gets for free is the least that a fused kernel must match."""

from __future__ import annotations

from ..schema import Measurement, Result, Role, Run
from ..stats.weighted import best_fused
from .wording import count, short_kernel

SHOWN_CASES = 8
"""Cases that are named, those with the most to gain first."""


def compiled_lines(run: Run) -> list[str]:
    """One line: that the best fused kernel is nowhere slower than torch.compile, or where and by how much; none without both.

    A case counts as slower where the intervals of the two times do not meet.
    """
    compared = 0
    slower = []
    for summary in run.cases:
        rows = [result for result in run.results if result.case_key == summary.case.key]
        fused = best_fused(rows)
        compiled = _best_compiled(rows)
        if fused is None or fused.measurement is None or compiled is None:
            continue
        compared += 1
        ours, theirs = fused.measurement.time_us, compiled.time_us
        if ours.low > theirs.high:
            slower.append((ours.value / theirs.value, summary.case.key, short_kernel(fused.kernel), ours.value, theirs.value))
    if not compared:
        return []
    if not slower:
        return [f"torch.compile: the best fused kernel is at least as fast on each of {count(compared, 'case')}"]
    slower.sort(reverse=True)
    named = [f"{key} ({kernel} {ours:.2f} us, compiled {theirs:.2f} us)" for _, key, kernel, ours, theirs in slower[:SHOWN_CASES]]
    more = f" and {len(slower) - SHOWN_CASES} more" if len(slower) > SHOWN_CASES else ""
    return [f"torch.compile is faster than the best fused kernel on {len(slower)} of {count(compared, 'case')}: {', '.join(named)}{more}"]


def _best_compiled(rows: list[Result]) -> Measurement | None:
    times = [row.measurement for row in rows if row.role is Role.COMPILED and row.measurement is not None and not row.covers]
    return min(times, key=lambda measurement: measurement.time_us.value, default=None)
