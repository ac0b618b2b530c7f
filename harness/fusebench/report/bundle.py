"""The files that lie beside a run's record: `report.md` and `speedup.png`."""

from __future__ import annotations

from pathlib import Path

from ..schema import Run
from ..store.baselines import VIEWS
from ..store.files import write_file
from .markdown import markdown_report
from .plot import speedup_png


def write_views(run: Run, folder: Path) -> list[Path]:
    """Make the run's report and plot in its folder, replacing any that are there, and return their paths."""
    report, plot = (folder / name for name in VIEWS)
    write_file(plot, speedup_png(run))
    write_file(report, markdown_report(run, plot=plot.name).encode())
    return [report, plot]
