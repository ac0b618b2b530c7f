"""`fusebench doctor`: is this machine fit to measure, and what to do about each "no".

This module has the findings on the GPU and the CPU, and the order of all; `doctor_software.py` has those on packages, compilers and the
project.  `no` means that the chosen device cannot be measured on; `warn` marks an optional part that is missing, or a fact worth knowing.
"""

from __future__ import annotations

from ..errors import DeviceUnfitError
from . import nvml as nvml_backend
from .cpu_load import load_warnings
from .doctor_software import DoctorFinding, counter_findings, no, ok, project_findings, toolchain_findings, warn
from .idle import idle_findings
from .lock import device_lock
from .readings import GpuMonitor, GpuReading, GpuUnavailableError
from .select import Device, resolve_device


def examine(spec: str) -> tuple[Device | None, list[DoctorFinding]]:
    """The device that `spec` resolves to (None without one) and all findings, in reading order.

    Raises:
        UsageError: `spec` is no device.
    """
    try:
        device = resolve_device(spec)
    except GpuUnavailableError as error:
        remedy = f"{error.remedy}, or use --device cpu"
        return None, [no("device", error.cause, remedy), *toolchain_findings("cuda"), *project_findings()]
    if spec == "auto" and device.kind == "cpu":
        findings = [
            warn("device", f"{device}; {'; '.join(device.warnings)}", "nothing for CPU runs; `fusebench doctor --device cuda` for a GPU")
        ]
    else:
        findings = [ok("device", str(device))]
    if device.kind == "cuda":
        findings += [warn("device order", text, "") for text in device.warnings]
        findings += gpu_findings(device, nvml_backend.open_monitor())
    else:
        findings += [_cpu_idle(), _lock(device)]
    return device, [*findings, *toolchain_findings(device.kind), *project_findings()]


def is_fit(findings: list[DoctorFinding]) -> bool:
    """Whether no finding forbids a measurement."""
    return all(finding.status != "no" for finding in findings)


def gpu_findings(device: Device, monitor: GpuMonitor) -> list[DoctorFinding]:
    """Driver, readability, idleness, lock, clocks, persistence and counters of one GPU."""
    reading = monitor.read(device.uuid)
    found = idle_findings(device, (), monitor)
    slowdown = [finding for finding in found if finding.kind == "slowdown"]
    company = [finding for finding in found if finding.kind not in {"slowdown", "unreadable"}]
    unreadable = [finding for finding in found if finding.kind == "unreadable"]
    return [
        _driver(monitor),
        *([no("NVML", finding.what, finding.remedy) for finding in unreadable] or [_readable(reading)]),
        *[(no if finding.refuses else warn)("idle", finding.what, finding.remedy) for finding in company],
        *([] if company or unreadable else [ok("idle", "no process, no memory in use, no work")]),
        _lock(device),
        *([no("clocks", finding.what, finding.remedy) for finding in slowdown] or [_clocks(reading)]),
        _persistence(reading),
        *counter_findings(),
    ]


def _driver(monitor: GpuMonitor) -> DoctorFinding:
    driver, cuda = monitor.driver_version(), monitor.cuda_driver_version()
    if driver is None:
        return warn("driver", "its version cannot be read", "raw times of this machine cannot be compared with others")
    return ok("driver", f"{driver}, CUDA up to {cuda or 'unknown'}")


def _readable(reading: GpuReading) -> DoctorFinding:
    lost = sorted(reading.unreadable)
    if not lost:
        return ok("NVML", "every value can be read")
    reasons = "; ".join(f"{field}: {reading.unreadable[field]}" for field in lost)
    return warn("NVML", f"not readable: {reasons}", "results will lack these values; idleness can be judged")


def _lock(device: Device) -> DoctorFinding:
    try:
        with device_lock(device):
            return ok("lock", "free")
    except DeviceUnfitError as error:
        return no("lock", str(error), "wait for that run with `fusebench run --wait SECONDS`")


def _clocks(reading: GpuReading) -> DoctorFinding:
    if reading.sm_mhz is None:
        return warn("clocks", "the SM clock cannot be read", "warm-up cannot tell when clocks are steady; runs will say so")
    reasons = f", {', '.join(reading.clock_reasons)}" if reading.clock_reasons else ""
    limit = f" of {reading.max_sm_mhz}" if reading.max_sm_mhz else ""
    temperature = f", {reading.temperature_c} C" if reading.temperature_c is not None else ""
    return ok("clocks", f"SM {reading.sm_mhz}{limit} MHz{reasons}{temperature}")


def _persistence(reading: GpuReading) -> DoctorFinding:
    if reading.persistence is None:
        return warn("persistence", "unknown", "without it the driver unloads between runs and each run starts colder")
    if reading.persistence:
        return ok("persistence", "on")
    return warn("persistence", "off", "as an administrator: nvidia-smi -pm 1 (the driver then stays loaded between runs)")


def _cpu_idle() -> DoctorFinding:
    found = load_warnings()
    return warn("idle", found[0], "") if found else ok("idle", "the CPU is quiet")
