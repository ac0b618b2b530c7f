"""The device: its choice, idleness, lock, clocks and throttle reasons, and the environment's fingerprint.

This layer imports no torch: it chooses and judges a device through NVML, psutil and package metadata, before any CUDA context exists.  All
readers of a GPU take a `GpuMonitor`, so the whole layer runs against a fake on a machine without one.
"""

from .clocks import SteadyClock, settle, wait_for_steady_clock
from .environment import environment_of
from .idle import IdleFinding, idle_findings, require_idle
from .lock import device_lock, wanted_by_others
from .monitor import EnvironmentMonitor
from .readings import GpuIdentity, GpuMonitor, GpuProcess, GpuReading
from .select import Device, resolve_device

__all__ = [
    "Device",
    "EnvironmentMonitor",
    "GpuIdentity",
    "GpuMonitor",
    "GpuProcess",
    "GpuReading",
    "IdleFinding",
    "SteadyClock",
    "device_lock",
    "environment_of",
    "idle_findings",
    "require_idle",
    "resolve_device",
    "settle",
    "wait_for_steady_clock",
    "wanted_by_others",
]
