"""What pytest-benchmark's table leaves out: speedup, share of the speed of light, throughput and error of each test."""

from __future__ import annotations

from typing import Any

from ..report.escape import one_line
from ..report.wording import bounded, share_of_limit
from .measuring import Measuring

_COLUMNS = ("test", "time us", "speedup", "SOL", "GB/s", "error x split")


def show(terminal: Any, measured: Measuring) -> None:
    """Write the section `fusebench` of the terminal's summary, where there is something to say."""
    rows = []
    for name, figures in measured.shown.items():
        speedup, sol, gb_per_s = figures.speedup(), figures.sol, figures.gb_per_s
        error = figures.facts.get("error_over_split")
        interval = f" [{speedup.low:.2f}, {speedup.high:.2f}]" if speedup is not None and bounded(speedup) else ""
        rows.append(
            (
                one_line(name),
                f"{figures.time_us().value:.2f}",
                f"{speedup.value:.2f}x{interval}" if speedup is not None else "",
                share_of_limit(sol.value) if sol is not None else "",
                f"{gb_per_s:.3g}" if gb_per_s is not None and gb_per_s < 100 else f"{gb_per_s:.0f}" if gb_per_s is not None else "",
                f"{error:.2f}" if error is not None else "",
            )
        )
    if not rows and not measured.reporter.notes:
        return
    terminal.section("fusebench", sep="-")
    if rows:
        widths = [max(len(row[column]) for row in [_COLUMNS, *rows]) for column in range(len(_COLUMNS))]
        for row in [_COLUMNS, *rows]:
            cells = [
                cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            terminal.write_line("  ".join(cells).rstrip())
    for note in measured.reporter.notes:
        terminal.write_line(f"note: {one_line(note)}")
