"""The load of other processes on the CPU.  Host timings tolerate some, so this warns and never refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LOAD_FLOOR = 0.25
"""One-minute load per CPU from which a warning is due: at a quarter of the CPUs a neighbour already shifts a median by percents."""

BUSY_PROCESS_PERCENT = 20.0
"""Percent of one CPU from which another process is named."""

WATCH_S = 0.2
"""Seconds over which processes are observed: psutil's counters tick in 10 ms."""

Processes = Callable[[], list[tuple[str, int, float]]]


def load_warnings(
    *,
    load: Callable[[], tuple[float, float, float]] = os.getloadavg,
    cpu_count: int | None = None,
    processes: Processes | None = None,
) -> list[str]:
    """One line if the load average or another process's CPU time is high, else an empty list.

    `processes` returns (name, pid, percent of one CPU) of foreign processes, busiest first.
    """
    cpus = cpu_count or os.cpu_count() or 1
    one_minute = load()[0]
    busy = [entry for entry in (processes or busiest_processes)() if entry[2] >= BUSY_PROCESS_PERCENT][:3]
    if one_minute / cpus < LOAD_FLOOR and not busy:
        return []
    company = ", ".join(f"{name} (pid {pid}, {percent:.0f} % of a CPU)" for name, pid, percent in busy)
    return [
        f"the CPU is not idle: load average {one_minute:.1f} on {cpus} CPUs"
        f"{f', busiest: {company}' if company else ''}; expect wider intervals, or wait until it is quiet"
    ]


def busiest_processes(watch_s: float = WATCH_S) -> list[tuple[str, int, float]]:
    """Processes outside this one's own family, busiest first, over `watch_s` seconds."""
    import psutil

    own = _family(psutil.Process())
    watched = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.pid not in own:
                process.cpu_percent(None)
                watched.append(process)
        except psutil.Error:
            continue  # it ended meanwhile or belongs to another user, so it cannot be named
    time.sleep(watch_s)
    found = []
    for process in watched:
        try:
            found.append((str(process.info["name"]), process.pid, float(process.cpu_percent(None))))
        except psutil.Error:
            continue
    return sorted(found, key=lambda entry: -entry[2])


def _family(process: object) -> set[int]:
    """Pids of this process, its children, and the shells and tools that wait for it."""
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return {process.pid, *(child.pid for child in process.children(recursive=True)), *(parent.pid for parent in process.parents())}
    except psutil.Error:
        return {process.pid}
