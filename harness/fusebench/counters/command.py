"""Nsight Compute's command lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .metric_sets import MetricSet

REPORT_SUFFIX = ".ncu-rep"


def capture_command(ncu: str, *, report: Path, metric_set: str, metrics: Sequence[str], cache_control: str, task: Path) -> list[str]:
    """Profile the process that runs the task in `task`, and write its report to `report`.

    Nothing is profiled until the process says so.  The clocks stay as they are: locking them needs rights that a user may lack, and the
    figures are to be of the clocks that kernels really run at.  Child processes (compilers) are left alone.  Every launch is repeated until
    all counters are read, its memory restored in between.

    Args:
        metric_set: `full` adds Nsight Compute's own full set to `metrics`, so that the report opens complete in its viewer.
        cache_control: `all` empties the caches before every replay pass, `none` leaves them.
    """
    return [
        ncu,
        "--profile-from-start", "off",
        "--target-processes", "application-only",
        "--replay-mode", "kernel",
        "--clock-control", "none",
        "--cache-control", cache_control,
        *(["--set", "full"] if metric_set == MetricSet.FULL else []),
        "--metrics", ",".join(metrics),
        "--force-overwrite",
        "--export", str(report),
        # -P: the current folder is no place to import from.
        sys.executable, "-P", "-m", "fusebench.counters.child", str(task),
    ]  # fmt: skip


def import_command(ncu: str, report: Path) -> list[str]:
    """Print a report's raw page as CSV, in base units."""
    return [ncu, "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]


def query_command(ncu: str) -> list[str]:
    """List the counters of the GPU that the process sees, without their suffixes."""
    return [ncu, "--query-metrics", "--csv"]
