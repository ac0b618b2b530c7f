"""The real `GpuMonitor`: NVIDIA's management library through `pynvml` (distribution nvidia-ml-py), loaded on first use.

It translates NVML's calls, units and error codes into `readings.py`; it judges nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

from .readings import GpuIdentity, GpuProcess, GpuReading, GpuUnavailableError, decode_clock_reasons

T = TypeVar("T")

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


_LOOK = "see `nvidia-smi` and the kernel log"


@functools.cache
def open_monitor() -> NvmlMonitor:
    """The process's connection to NVML.

    Raises:
        GpuUnavailableError: no driver library, the driver is not loaded, or library and kernel module disagree.
    """
    return NvmlMonitor()


class NvmlMonitor:
    """Reads GPUs through a module with pynvml's interface (`api`, the installed pynvml by default)."""

    def __init__(self, api: Any = None) -> None:
        self._api = api = _installed_pynvml() if api is None else api
        self._handles: dict[str, Any] = {}
        try:
            api.nvmlInit()
        except api.NVMLError as error:
            raise _unavailable(api, error) from error

    def driver_version(self) -> str | None:
        return self._attempt(lambda: _text(self._api.nvmlSystemGetDriverVersion()), "driver", {})

    def cuda_driver_version(self) -> str | None:
        version = self._attempt(lambda: int(self._api.nvmlSystemGetCudaDriverVersion_v2()), "cuda", {})
        return None if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def gpus(self) -> list[GpuIdentity]:
        api = self._api
        try:
            handles = [api.nvmlDeviceGetHandleByIndex(index) for index in range(api.nvmlDeviceGetCount())]
        except api.NVMLError as error:
            raise GpuUnavailableError(f"NVML cannot list the GPUs: {error}", _LOOK) from error
        return [self._identify(handle, index) for index, handle in enumerate(handles)]

    def mig_instances(self) -> list[GpuIdentity]:
        return [instance for gpu in self.gpus() if gpu.mig_enabled for instance in self._instances_of(gpu)]

    def _instances_of(self, gpu: GpuIdentity) -> list[GpuIdentity]:
        api, parent = self._api, self._handle(gpu.uuid)
        slots = self._attempt(lambda: int(api.nvmlDeviceGetMaxMigDeviceCount(parent)), "mig", {}) or 0
        # An unused slot answers NOT_FOUND and holds no instance.
        handles = [self._attempt(partial(api.nvmlDeviceGetMigDeviceHandleByIndex, parent, slot), "mig", {}) for slot in range(slots)]
        return [self._identify(handle, gpu.nvml_index, parent=gpu) for handle in handles if handle is not None]

    def read(self, uuid: str) -> GpuReading:
        api, lost = self._api, dict[str, str]()
        handle = self._attempt(lambda: self._handle(uuid), "device", lost)
        if handle is None:
            return GpuReading(unreadable=dict.fromkeys(("processes", "memory_used_bytes", "utilisation_percent"), lost["device"]) | lost)

        def read(field: str, call: Callable[[], T]) -> T | None:
            return self._attempt(call, field, lost)

        def milliwatts(function: Callable[[Any], int]) -> float:
            return function(handle) / 1000

        # Local names keep the table below readable: one line per value.
        sm, mem = api.NVML_CLOCK_SM, api.NVML_CLOCK_MEM
        return GpuReading(
            processes=read("processes", lambda: self._processes(handle)),
            # Version 2 of the structure: version 1 counts the driver's own reserve (hundreds of MiB on an idle GPU) as used.
            memory_used_bytes=read("memory_used_bytes", lambda: int(api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2).used)),
            utilisation_percent=read("utilisation_percent", lambda: int(api.nvmlDeviceGetUtilizationRates(handle).gpu)),
            sm_mhz=read("sm_mhz", lambda: int(api.nvmlDeviceGetClockInfo(handle, sm))),
            mem_mhz=read("mem_mhz", lambda: int(api.nvmlDeviceGetClockInfo(handle, mem))),
            max_sm_mhz=read("max_sm_mhz", lambda: int(api.nvmlDeviceGetMaxClockInfo(handle, sm))),
            max_mem_mhz=read("max_mem_mhz", lambda: int(api.nvmlDeviceGetMaxClockInfo(handle, mem))),
            memory_bus_bits=read("memory_bus_bits", lambda: int(api.nvmlDeviceGetMemoryBusWidth(handle))),
            clock_reasons=read("clock_reasons", lambda: decode_clock_reasons(self._clock_reason_bits(handle))),
            compute_mode=read("compute_mode", lambda: _mode_name(api.nvmlDeviceGetComputeMode(handle))),
            temperature_c=read("temperature_c", lambda: int(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU))),
            power_w=read("power_w", lambda: milliwatts(api.nvmlDeviceGetPowerUsage)),
            power_limit_w=read("power_limit_w", lambda: milliwatts(api.nvmlDeviceGetEnforcedPowerLimit)),
            ecc=read("ecc", lambda: bool(api.nvmlDeviceGetEccMode(handle)[0])),
            mig=read("mig", lambda: bool(api.nvmlDeviceGetMigMode(handle)[0])),
            persistence=read("persistence", lambda: bool(api.nvmlDeviceGetPersistenceMode(handle))),
            unreadable=lost,
        )

    def near_cores(self, uuid: str) -> frozenset[int] | None:
        """Numbers of the processor's cores of the GPU's NUMA node; None where NVML does not tell."""
        words = (os.cpu_count() or 1) // 64 + 1
        masks = self._attempt(lambda: list(self._api.nvmlDeviceGetCpuAffinity(self._handle(uuid), words)), "cores", {})
        if masks is None:
            return None
        return frozenset(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if int(mask) >> bit & 1)

    def sm_mhz(self, uuid: str) -> float | None:
        """The multiprocessors' clock alone: far cheaper than `read`."""
        return self._attempt(lambda: float(self._api.nvmlDeviceGetClockInfo(self._handle(uuid), self._api.NVML_CLOCK_SM)), "sm_mhz", {})

    def _attempt(self, call: Callable[[], T], field: str, lost: dict[str, str]) -> T | None:
        """`call()`, or None with the reason under `field`.  An AttributeError means a pynvml without that function or constant."""
        try:
            return call()
        except (self._api.NVMLError, AttributeError) as error:
            lost[field] = str(error)
            return None

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._api.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _identify(self, handle: Any, index: int, parent: GpuIdentity | None = None) -> GpuIdentity:
        api, lost = self._api, dict[str, str]()
        uuid = _text(api.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        capability = self._attempt(lambda: api.nvmlDeviceGetCudaComputeCapability(handle), "compute_capability", lost)
        mig = parent is None and self._attempt(lambda: bool(api.nvmlDeviceGetMigMode(handle)[0]), "mig", lost)
        return GpuIdentity(
            nvml_index=index,
            uuid=uuid,
            name=self._attempt(lambda: _text(api.nvmlDeviceGetName(handle)), "name", lost) or "unnamed NVIDIA GPU",
            compute_capability=(int(capability[0]), int(capability[1])) if capability else (parent.compute_capability if parent else None),
            memory_bytes=self._attempt(lambda: int(api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2).total), "memory", lost),
            mig_enabled=bool(mig),
            parent_uuid=parent.uuid if parent else "",
        )

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        api = self._api
        found: dict[int, GpuProcess] = {}
        for kind, listing in (
            ("graphics", api.nvmlDeviceGetGraphicsRunningProcesses),
            ("compute", api.nvmlDeviceGetComputeRunningProcesses),  # second, so that a process on both lists counts as compute
        ):
            for entry in listing(handle):
                found[entry.pid] = self._process(entry.pid, entry.usedGpuMemory, kind)
        return tuple(found[pid] for pid in sorted(found))

    def _process(self, pid: int, used: int | None, kind: Any) -> GpuProcess:
        kind_: Literal["compute", "graphics"] = kind
        name = self._attempt(lambda: _text(self._api.nvmlSystemGetProcessName(pid)), "name", {})
        return GpuProcess(pid=pid, name=name or _name_from_system(pid), used_bytes=used, kind=kind_)

    def _clock_reason_bits(self, handle: Any) -> int:
        """Bits of the clocks' event reasons, by the newer name first; a driver before 535 has only the older one."""
        api = self._api
        try:
            return int(api.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except (api.NVMLError, AttributeError):
            return int(api.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _installed_pynvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise GpuUnavailableError(f"the Python module pynvml cannot be imported ({error})", "pip install nvidia-ml-py") from error
    return pynvml


def _mode_name(mode: int) -> str:
    return _COMPUTE_MODES.get(int(mode), f"mode_{mode}")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _name_from_system(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "a process outside this container or without a readable name"


def _unavailable(api: Any, error: Exception) -> GpuUnavailableError:
    code = getattr(error, "value", None)
    if code == getattr(api, "NVML_ERROR_LIBRARY_NOT_FOUND", 12):
        remedy = "install the driver, or start the container with its GPU runtime"
        return GpuUnavailableError("no NVIDIA driver library (libnvidia-ml.so.1) is installed", remedy)
    if code == getattr(api, "NVML_ERROR_DRIVER_NOT_LOADED", 9):
        return GpuUnavailableError("the NVIDIA kernel driver is not loaded", _LOOK)
    if code == getattr(api, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18):
        return GpuUnavailableError("NVML's library and the loaded kernel driver are of different versions", "reboot, or reload the driver")
    return GpuUnavailableError(f"NVML does not start: {error}", _LOOK)
