"""Watches the device throughout a measurement, from a thread of the runner (never of the timed worker).

This module samples the device and reports interference since a given time; the runner acts on it.

Limits: it misses processes that come and go between two samples.  Where the driver lists no process at all (some containers), it misses
processes that arrive while one of our workers holds memory; the summary counts such samples (`unlisted`).
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from . import nvml as nvml_backend
from .idle import JUDGED_FIELDS, memory_allowance, unexplained_memory
from .periodic import Periodic
from .readings import SLOWDOWN_REASONS, GpuMonitor, GpuProcess, GpuReading, format_bytes
from .select import Device

INTERVAL_S = 0.25
"""Seconds between samples.  A full reading took 3.7 ms on an H200 (driver 580.159): four a second cost 1.5 % of one CPU."""

RELEASE_GRACE_S = 2.0
"""Seconds until the driver's count drops the memory of one of our workers that ended."""

SERIES = ("sm_mhz", "mem_mhz", "temperature_c", "power_w", "utilisation_percent", "memory_used_bytes")
BLIND = "cannot tell whether the device was touched"
"""Begins the intrusion of a device that could not be read."""
UNEXPLAINED = "unexplained_memory_bytes"
"""Key in the summary of the memory that no listed process holds; foreign memory is judged by it."""


class _Sample(msgspec.Struct, frozen=True):
    at: float
    values: dict[str, float]
    reasons: tuple[str, ...]
    intrusions: tuple[str, ...]
    blind: str
    unlisted: bool = False
    """Memory was in use, one of our workers ran and the driver listed no process: a foreign process would not have shown."""


def process_family() -> set[int]:
    """Pids of this process and of all processes that it started."""
    import psutil

    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


class EnvironmentMonitor:
    """Context manager around a measurement on `device`.

    `own_pids` is called at every sample and returns the processes that may use the GPU.  A pid stays ours after its end, because the driver
    may still list it.  Samples of the CPU hold the load average only.
    """

    def __init__(
        self,
        device: Device,
        own_pids: Callable[[], set[int]] = process_family,
        interval_s: float = INTERVAL_S,
        *,
        monitor: GpuMonitor | None = None,
        clock: Callable[[], float] = time.monotonic,
        pid_exists: Callable[[int], bool] | None = None,
    ) -> None:
        self._device = device
        self._own_pids = own_pids
        self._interval_s = interval_s
        self._gpu = (monitor if monitor is not None else nvml_backend.open_monitor()) if device.kind == "cuda" else None
        self._clock = clock
        self._pid_exists = pid_exists or _pid_exists
        self._lock = threading.Lock()
        self._samples: list[_Sample] = []
        self._failures: list[str] = []
        self._ever_own: set[int] = set()
        self._last_own_at = clock()
        self._excess_before = False
        self._unattributed = ""
        self._sampling = Periodic(self.sample, interval_s, name="fusebench-environment")

    def start(self) -> None:
        """Begin to sample in the background."""
        self._sampling.start()

    def stop(self) -> None:
        """End the sampling; harmless when called twice."""
        self._sampling.stop()

    def __enter__(self) -> EnvironmentMonitor:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def sample(self) -> None:
        """Take one sample now, in the calling thread.  A failure is recorded and not raised."""
        at = self._clock()
        try:
            sample = self._look(at)
        except Exception as error:  # noqa: BLE001  a monitor must not end a measurement; the summary has the failure
            sample = _Sample(at, {}, (), (), f"{type(error).__name__}: {error}")
        with self._lock:
            self._samples.append(sample)
            if sample.blind:
                self._failures.append(sample.blind)

    def intrusions_since(self, monotonic_time: float, *, look: bool = True) -> list[str]:
        """Interference at or after `monotonic_time` (of `time.monotonic`), each kind once, in order of appearance.

        It reports foreign processes, memory that no listed process holds, lowered clocks, and a time without readable samples.  With `look`
        a new sample is taken first, so that a short round is covered too.
        """
        if look:
            self.sample()
        with self._lock:
            recent = [sample for sample in self._samples if sample.at >= monotonic_time]
        seen = dict.fromkeys(text for sample in recent for text in sample.intrusions)
        if recent and all(sample.blind for sample in recent):
            seen[f"{BLIND}: {recent[-1].blind}"] = None
        return list(seen)

    def summary(self) -> dict[str, Any]:
        """All samples so far, summarised as plain values for the run record."""
        with self._lock:
            samples, failures, unattributed = list(self._samples), list(self._failures), self._unattributed
        names = (*SERIES, UNEXPLAINED) if self._gpu is not None else ("load_average",)
        series = {name: [sample.values[name] for sample in samples if name in sample.values] for name in names}
        reasons = sorted({reason for sample in samples for reason in sample.reasons})
        result: dict[str, Any] = {
            "samples": len(samples),
            "interval_s": self._interval_s,
            **{name: _spread(values) for name, values in series.items() if values},
            "clock_reasons": {reason: sum(reason in sample.reasons for sample in samples) for reason in reasons},
            "unlisted": sum(sample.unlisted for sample in samples),
            "intrusions": list(dict.fromkeys(text for sample in samples for text in sample.intrusions)),
        }
        if failures:
            result["failures"] = {"count": len(failures), "last": failures[-1]}
        if unattributed:
            result["unattributed"] = unattributed
        return result

    def _look(self, at: float) -> _Sample:
        if self._gpu is None:
            return _Sample(at, {"load_average": os.getloadavg()[0]}, (), (), "")
        reading = self._gpu.read(self._device.uuid)
        own = self._own_pids()  # after the reading: a worker registered meanwhile is ours
        with self._lock:
            self._ever_own |= own
            if own - {os.getpid()}:
                self._last_own_at = at
            ours, workers_gone_s = set(self._ever_own), at - self._last_own_at
        lost = [
            f"{field}: {reading.unreadable.get(field, 'no reason given')}" for field in JUDGED_FIELDS if getattr(reading, field) is None
        ]
        reasons = reading.clock_reasons or ()
        slowdown = [f"clocks held down: {reason}" for reason in reasons if reason in SLOWDOWN_REASONS]
        company = [f"foreign process {describe(process)}" for process in self._foreign(reading, ours)]
        company += self._foreign_memory(reading, workers_gone_s)
        values = {name: float(value) for name in SERIES if (value := getattr(reading, name)) is not None}
        if reading.processes is not None and reading.memory_used_bytes is not None:
            values[UNEXPLAINED] = float(unexplained_memory(reading))
        unlisted = not reading.processes and workers_gone_s == 0 and unexplained_memory(reading) > memory_allowance(reading)
        return _Sample(at, values, reasons, (*company, *slowdown), "; ".join(lost), unlisted)

    def _foreign_memory(self, reading: GpuReading, workers_gone_s: float) -> list[str]:
        """Memory that no listed process holds.  Where no process is listed, our worker's memory is unlisted too, and nothing is reported.

        Two samples in a row must agree: the list and the total are read milliseconds apart, and a worker may allocate in between.
        """
        attributable = bool(reading.processes) or workers_gone_s > RELEASE_GRACE_S
        allowance = memory_allowance(reading)
        excess = attributable and unexplained_memory(reading) > allowance
        with self._lock:
            before, self._excess_before = self._excess_before, excess
        beyond = f"more than {format_bytes(allowance)} in use beyond what listed processes hold"
        return [f"foreign memory: {beyond}"] if excess and before else []

    def _foreign(self, reading: GpuReading, own: set[int]) -> list[GpuProcess]:
        """Listed processes that are not ours.

        Some containers list pids of the host's namespace, where our worker has another number.  If none of ours is listed and the listed
        pids do not exist in this namespace, they may be ours: they are recorded and do not count against the round.
        """
        listed = reading.processes or ()
        foreign = [process for process in listed if process.pid not in own]
        workers = own - {os.getpid()}  # the runner itself holds no context
        ghosts = [process for process in foreign if not self._pid_exists(process.pid)]
        if len(foreign) < len(listed) or not ghosts or len(ghosts) > len(workers):
            return foreign
        with self._lock:
            self._unattributed = "the driver lists processes by numbers of another namespace, so ours cannot be identified: " + ", ".join(
                describe(process) for process in ghosts
            )
        return [process for process in foreign if process not in ghosts]


def describe(process: GpuProcess) -> str:
    """A process without its memory, which changes from sample to sample and would make one process look like many."""
    return f"{process.name} (pid {process.pid})"


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def _pid_exists(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))
