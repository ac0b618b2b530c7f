"""Where a run's time went, in one or two lines."""

from __future__ import annotations

from ..schema import Run
from .wording import short_kernel

SHOWN_KERNELS = 3
"""Kernels that are named: enough to see who is slow to check or to compile."""


def spending_lines(run: Run) -> list[str]:
    """Phases of the run by what they took, the rest by itself, and the kernels that took most; empty for records that lack it."""
    spending = run.spending
    if spending is None:
        return []
    rest = spending.total_s - sum(spending.phases_s.values())
    parts = [f"{name} {seconds:.1f} s" for name, seconds in [*spending.phases_s.items(), ("the rest", rest)] if seconds >= 0.05]
    lines = [f"time spent: {spending.total_s:.1f} s" + (f" ({', '.join(parts)})" if parts else "")]
    kernels = sorted(spending.kernels_s.items(), key=lambda item: -item[1])[:SHOWN_KERNELS]
    slow = [f"{short_kernel(name)} of {name.split('/', maxsplit=1)[0]} {seconds:.1f} s" for name, seconds in kernels if seconds >= 1]
    if slow:
        lines.append(f"slowest to check and compile: {', '.join(slow)}")
    return lines
