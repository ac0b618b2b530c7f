"""Nsight Compute's command lines, and the watched process that runs one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from .metric_sets import MetricSet

REPORT_SUFFIX = ".ncu-rep"
POLL_S = 0.1


def capture_command(ncu: str, *, report: Path, metric_set: str, metrics: Sequence[str], cache_control: str, task: Path) -> list[str]:
    """Profile the process that runs the task in `task`, and write its report to `report`.

    The process switches the profiler on.  The clocks stay as they are: locking them needs rights that a user may lack, and the figures
    should be of the clocks at which kernels really run.  Child processes (compilers) are not profiled.  Nsight Compute repeats every launch
    until all counters are read, and restores its memory in between.

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
        # -P: do not import from the current folder.
        sys.executable, "-P", "-m", "fusebench.counters.child", str(task),
    ]  # fmt: skip


def import_command(ncu: str, report: Path) -> list[str]:
    """Print a report's raw page as CSV, in base units."""
    return [ncu, "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]


def query_command(ncu: str) -> list[str]:
    """List the counters of the GPU that the process sees, without their suffixes."""
    return [ncu, "--query-metrics", "--csv"]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    code: int | None
    """Exit code, negative for a signal; None if the program was killed because it was silent."""
    said: str
    """Standard output and standard error, in order of arrival."""


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    silence_s: float,
    signs_of_life: Callable[[], object] = lambda: None,
) -> Ended:
    """Run `command` and wait for its end.  A silent or interrupted program is killed with all processes that it started.

    Args:
        silence_s: seconds without new output and without a change of `signs_of_life()` until it is killed.
        signs_of_life: called often; a changed value is a sign of life.
    """
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C reaches the caller alone, and the whole group can be killed.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )
        try:
            ended = _wait(process, lambda: (os.fstat(output.fileno()).st_size, signs_of_life()), silence_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the processes that it left behind, or all
            process.wait()
        output.seek(0)
        return Ended(code=process.returncode if ended else None, said=output.read().decode("utf-8", "replace"))


def _wait(process: subprocess.Popen[bytes], signs: Callable[[], object], silence_s: float) -> bool:
    """Whether the process ended by itself."""
    last, heard = signs(), time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return True
        now = signs()
        if now != last:
            last, heard = now, time.monotonic()
        elif time.monotonic() - heard > silence_s:
            return False
