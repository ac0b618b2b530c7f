"""The GPU whose counters `fusebench ncu` reads: find it and check that it is idle while the kernels load, then hold it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ...device import Device, device_lock, idle_findings, require_idle, resolve_device
from ...device import nvml as nvml_backend
from ...device.nsight import NsightProbe, require_counters
from ...device.readings import GpuUnavailableError
from ...device.toolchain import require_torch_for
from ...errors import DeviceUnfitError
from ..context import Reporter


@dataclass(frozen=True)
class FitDevice:
    """A GPU, and Nsight Compute for it."""

    device: Device
    probe: NsightProbe
    seen_idle: bool
    """Whether it was idle, without any remark, while the kernels loaded."""


def look_for_device(spec: str) -> Future[FitDevice]:
    """Start looking, in a thread: `ncu --version` and the second in which the device is watched take as long as torch's import does.

    `result()` raises DeviceUnfitError if there is no GPU, torch cannot use it, Nsight Compute is missing or too old, or counters may not
    be read.  It is asked after the kernels are loaded, so that a mistake on the command line is told first.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fusebench-ncu-device")
    try:
        return pool.submit(_look, spec)
    finally:
        pool.shutdown(wait=False)


@contextmanager
def hold_for_counters(fit: FitDevice, reporter: Reporter, *, wait_s: float) -> Iterator[list[str]]:
    """Hold the device for the body, idle; yields warnings for the record.

    The look while the kernels loaded counts, unless the lock had to be waited for: then someone was there after it.

    Raises:
        DeviceUnfitError: another run holds the device, or it is not idle.
    """
    waited: list[str] = []

    def say(text: str) -> None:
        waited.append(text)
        reporter.note(text)

    with device_lock(fit.device, wait_s=wait_s, on_wait=say):
        seen = [] if fit.seen_idle and not waited else require_idle(fit.device, wait_s=wait_s, on_wait=say)
        yield [*fit.device.warnings, *seen]


def _look(spec: str) -> FitDevice:
    try:
        device = resolve_device("cuda" if spec == "auto" else spec)
    except GpuUnavailableError as error:
        raise DeviceUnfitError(f"Nsight Compute reads a GPU's counters: {error.cause}; {error.remedy}") from error
    if device.kind == "cpu":
        raise DeviceUnfitError("--device cpu: Nsight Compute reads the counters of an NVIDIA GPU; choose one with --device cuda:N")
    require_torch_for(device)
    probe = require_counters()
    # Whatever speaks against the device now is told, or waited for, by the look under the lock.
    return FitDevice(device, probe, seen_idle=not idle_findings(device, {os.getpid()}, nvml_backend.open_monitor()))
