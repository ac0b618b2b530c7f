"""Whether another process uses the device, judged before a measurement, while this process has no CUDA context.

On CUDA every finding with `refuses` stops the run (exit code 3): a time beside another process's kernels is not valid.  A value that cannot
be read is a finding too, because "unknown" is not "idle".  The CPU is never refused, only warned about: see `cpu_load.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import Literal

import msgspec

from ..errors import DeviceUnfitError
from . import nvml as nvml_backend
from .cpu_load import load_warnings
from .readings import SLOWDOWN_REASONS, GpuMonitor, GpuReading, format_bytes
from .select import Device

MEMORY_FLOOR_BYTES = 64 * 2**20
"""Bytes in use beyond the listed processes' memory, up to which a GPU without listed processes still counts as empty.

An idle H200 reports 0 MiB (driver 580.159).  The smallest CUDA context takes more than 100 MiB (0.5 to 1 GiB on an H200), so any other
context shows.
"""

MEMORY_PER_PROCESS_BYTES = 16 * 2**20
"""Bytes that each listed process adds to the floor.

An H200 reports 9 MiB beyond the listed 874 MiB of one process (driver 580.159), so eight processes exceed the fixed floor by themselves.
Twenty, the most that measure one case, have an allowance of 64 + 320 MiB and use 180 MiB of it.  A context of 500 MiB, the smallest on an
H200, still shows beside them; one of less than 200 MiB, on another GPU, would not.
"""

UTILISATION_FLOOR_PERCENT = 5
"""Utilisation in percent up to which a GPU counts as idle: monitoring agents read 0 to 1 %, any steady work far more."""

SAMPLES = 5
INTERVAL_S = 0.25
"""Seconds between readings, five over one second: the driver averages utilisation over up to a second, so one reading may miss a burst."""

BUSY_SAMPLES = 2
"""Readings above a floor that make a GPU busy: a single one may be the end of a finished job."""

POLL_S = 2.0
"""Seconds between checks while waiting for a device to become idle."""

JUDGED_FIELDS = ("processes", "memory_used_bytes", "utilisation_percent")
"""The fields that an idleness check needs; without one of them the answer is unknown."""


class IdleFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One sign that another process uses the device, or that its state forbids a measurement."""

    kind: Literal["process", "memory", "utilisation", "slowdown", "compute_mode", "unreadable"]
    what: str
    remedy: str
    refuses: bool = True
    """Whether it stops a run; otherwise it is a warning."""
    may_pass: bool = True
    """Whether waiting can help."""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def idle_findings(
    device: Device,
    own_pids: Collection[int],
    monitor: GpuMonitor,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[IdleFinding]:
    """The findings against measuring on `device` (a GPU) now, from `SAMPLES` readings; empty when it is idle.

    `own_pids` are this run's processes; their memory is not foreign.  A CPU device has no findings.
    """
    if device.kind == "cpu":
        return []
    readings = []
    for number in range(SAMPLES):
        if number:
            sleep(INTERVAL_S)
        readings.append(monitor.read(device.uuid))
    return [
        *_unreadable(readings),
        *_processes(readings, own_pids),
        *_unexplained_memory(readings),
        *_utilisation(readings),
        *_slowdown(readings),
        *_compute_mode(readings[-1]),
    ]


def require_idle(
    device: Device,
    *,
    wait_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda _: None,
    monitor: GpuMonitor | None = None,
    own_pids: Collection[int] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Wait up to `wait_s` seconds until `device` is idle, and return the warnings.

    `on_wait` gets one line whenever the reason for waiting changes.  `own_pids` is this process by default.

    Raises:
        DeviceUnfitError: the device is not idle, or its state is unknown; the message names the processes and the remedy.
    """
    if device.kind == "cpu":
        return load_warnings()
    monitor = monitor if monitor is not None else nvml_backend.open_monitor()
    mine = {os.getpid()} if own_pids is None else own_pids
    deadline = clock() + wait_s
    told = ""
    while True:
        findings = idle_findings(device, mine, monitor, sleep=sleep)
        against = [finding for finding in findings if finding.refuses]
        if not against:
            return [str(finding) for finding in findings]
        left = deadline - clock()
        if left <= 0 or not all(finding.may_pass for finding in against):
            raise DeviceUnfitError(_refusal(device, against, wait_s))
        reasons = "; ".join(finding.what for finding in against)
        if reasons != told:
            on_wait(f"waiting up to {left:.0f} s for {device.name}: {reasons}")
            told = reasons
        sleep(min(POLL_S, left))


def _refusal(device: Device, findings: list[IdleFinding], waited_s: float) -> str:
    waited = f" after waiting {waited_s:g} s" if waited_s > 0 else ""
    lines = [f"{device} is not fit to measure on{waited}:", *(f"  - {finding}" for finding in findings)]
    if any(finding.may_pass for finding in findings):
        lines.append("Wait for it with --wait SECONDS, or choose another device with --device.")
    return "\n".join(lines)


def _unreadable(readings: list[GpuReading]) -> list[IdleFinding]:
    """A finding for each field that failed in any reading: other readings do not show that moment."""
    reasons: dict[str, str] = {}
    for reading in readings:
        for field in JUDGED_FIELDS:
            if getattr(reading, field) is None:
                reasons.setdefault(field, reading.unreadable.get(field, "no reason given"))
    return [
        IdleFinding(
            kind="unreadable",
            what=f"cannot tell whether the GPU is idle: {field} cannot be read ({reason})",
            remedy="run where NVML may read it (not inside a restricted container or a MIG instance), or choose another device",
            may_pass=False,
        )
        for field, reason in reasons.items()
    ]


def _processes(readings: list[GpuReading], own_pids: Collection[int]) -> list[IdleFinding]:
    """Findings on listed processes.  A display server with less memory than the floor draws a still picture: named, not refused."""
    seen = {process.pid: process for reading in readings for process in reading.processes or () if process.pid not in own_pids}
    findings = []
    for process in seen.values():
        harmless = process.kind == "graphics" and process.used_bytes is not None and process.used_bytes <= MEMORY_FLOOR_BYTES
        findings.append(
            IdleFinding(
                kind="process",
                what=f"{process} is on the GPU",
                remedy=f"wait for it, or end it (kill {process.pid}) if it is yours",
                refuses=not harmless,
            )
        )
    return findings


def unexplained_memory(reading: GpuReading) -> int:
    """Bytes in use beyond the listed processes' memory; 0 if a process hides its share or the values are unreadable."""
    if reading.memory_used_bytes is None or reading.processes is None:
        return 0
    shares = [process.used_bytes for process in reading.processes]
    if any(share is None for share in shares):
        return 0
    return max(0, reading.memory_used_bytes - sum(share for share in shares if share is not None))


def memory_allowance(reading: GpuReading) -> int:
    """Bytes of unexplained memory that do not indicate another process: a fixed floor and the driver's own per listed process."""
    return MEMORY_FLOOR_BYTES + MEMORY_PER_PROCESS_BYTES * len(reading.processes or ())


def _unexplained_memory(readings: list[GpuReading]) -> list[IdleFinding]:
    seen = [(unexplained_memory(reading), memory_allowance(reading)) for reading in readings]
    above = [(excess, allowance) for excess, allowance in seen if excess > allowance]
    if len(above) < min(BUSY_SAMPLES, len(readings)):
        return []
    excess, allowance = max(above)
    beyond = f"beyond what listed processes hold (more than {format_bytes(allowance)})"
    return [
        IdleFinding(
            kind="memory",
            what=f"{format_bytes(excess)} are in use on the GPU {beyond}",
            remedy="someone outside this container or user is likely there: look with nvidia-smi on the host",
        )
    ]


def _utilisation(readings: list[GpuReading]) -> list[IdleFinding]:
    values = [reading.utilisation_percent for reading in readings if reading.utilisation_percent is not None]
    above = [value for value in values if value > UTILISATION_FLOOR_PERCENT]
    if len(above) < min(BUSY_SAMPLES, len(readings)):
        return []
    return [
        IdleFinding(
            kind="utilisation",
            what=f"the GPU is {max(above)} % busy (above {UTILISATION_FLOOR_PERCENT} % in {len(above)} of {len(readings)} readings)",
            remedy="wait until the work that runs on it ends",
        )
    ]


def _slowdown(readings: list[GpuReading]) -> list[IdleFinding]:
    seen = sorted({reason for reading in readings for reason in reading.clock_reasons or () if reason in SLOWDOWN_REASONS})
    if not seen:
        return []
    temperature = next((f" at {reading.temperature_c} C" for reading in readings if reading.temperature_c is not None), "")
    return [
        IdleFinding(
            kind="slowdown",
            what=f"the GPU holds its clocks down ({', '.join(seen)}){temperature}",
            remedy="let it cool, and check its cooling and power supply",
        )
    ]


def _compute_mode(reading: GpuReading) -> list[IdleFinding]:
    """A finding where no CUDA context can be made.  Exclusive-process is fine: this run becomes the one process."""
    if reading.compute_mode != "prohibited":
        return []
    return [
        IdleFinding(
            kind="compute_mode",
            what="the GPU's compute mode is prohibited: no CUDA context can be made",
            remedy="an administrator can allow it with `nvidia-smi -c DEFAULT`, or choose another device",
            may_pass=False,
        )
    ]
