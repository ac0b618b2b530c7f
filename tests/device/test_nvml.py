"""The translation of NVML's answers, against a stand-in with pynvml's interface; and the real one where there is a GPU."""

# ruff: noqa: N802, N815  the stand-in bears pynvml's names

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from fusebench.device.nvml import NvmlMonitor, open_monitor
from fusebench.device.readings import CLOCK_REASONS, GpuUnavailableError, decode_clock_reasons

UUID = "GPU-aaaa1111"


class FakePynvml:
    """One GPU.  `fails` names functions that answer NOT_SUPPORTED; `code` makes nvmlInit fail."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_TEMPERATURE_GPU
    nvmlMemory_v2 = pynvml.nvmlMemory_v2

    def __init__(self, fails: set[str] | None = None, code: int | None = None) -> None:
        self.fails = fails or set()
        self.code = code

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "fails"):

            def unsupported(*_):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

            return unsupported
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        if self.code is not None:
            raise pynvml.NVMLError(self.code)

    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: f"handle{index}")
    nvmlDeviceGetHandleByUUID = staticmethod(lambda uuid: "handle0")
    nvmlDeviceGetUUID = staticmethod(lambda handle: UUID)
    nvmlDeviceGetName = staticmethod(lambda handle: b"NVIDIA H200")
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: (9, 0))
    nvmlDeviceGetMigMode = staticmethod(lambda handle: [0, 0])
    nvmlSystemGetDriverVersion = staticmethod(lambda: "580.159.03")
    nvmlSystemGetCudaDriverVersion_v2 = staticmethod(lambda: 13020)
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: SimpleNamespace(gpu=7, memory=1))
    nvmlDeviceGetComputeMode = staticmethod(lambda handle: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    nvmlDeviceGetTemperature = staticmethod(lambda handle, sensor: 41)
    nvmlDeviceGetPowerUsage = staticmethod(lambda handle: 75_500)
    nvmlDeviceGetEnforcedPowerLimit = staticmethod(lambda handle: 700_000)
    nvmlDeviceGetEccMode = staticmethod(lambda handle: [1, 1])
    nvmlDeviceGetPersistenceMode = staticmethod(lambda handle: 0)
    nvmlDeviceGetMemoryBusWidth = staticmethod(lambda handle: 6144)
    nvmlDeviceGetMaxClockInfo = staticmethod(lambda handle, kind: 1980)
    nvmlDeviceGetCurrentClocksEventReasons = staticmethod(lambda handle: 0x1)
    nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda handle: 0x40)

    @staticmethod
    def nvmlDeviceGetClockInfo(handle, kind):
        return {pynvml.NVML_CLOCK_SM: 345, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    @staticmethod
    def nvmlDeviceGetMemoryInfo(handle, version=None):
        assert version == pynvml.nvmlMemory_v2, "version 1 counts the driver's reserve as used"
        return SimpleNamespace(total=143771 * 2**20, reserved=600 * 2**20, used=0)

    @staticmethod
    def nvmlDeviceGetComputeRunningProcesses(handle):
        return [SimpleNamespace(pid=42, usedGpuMemory=2**30), SimpleNamespace(pid=43, usedGpuMemory=None)]

    @staticmethod
    def nvmlDeviceGetGraphicsRunningProcesses(handle):
        return [SimpleNamespace(pid=42, usedGpuMemory=2**30), SimpleNamespace(pid=7, usedGpuMemory=4 * 2**20)]

    @staticmethod
    def nvmlSystemGetProcessName(pid):
        return f"/usr/bin/program{pid}"


def test_a_reading_holds_every_value_in_its_unit() -> None:
    monitor = NvmlMonitor(FakePynvml())
    reading = monitor.read(UUID)
    assert reading.unreadable == {}
    assert (reading.sm_mhz, reading.mem_mhz, reading.max_sm_mhz) == (345, 3201, 1980)
    assert reading.memory_bus_bits == 6144
    assert (reading.power_w, reading.power_limit_w, reading.temperature_c) == (75.5, 700.0, 41)
    assert (reading.compute_mode, reading.clock_reasons, reading.utilisation_percent) == ("exclusive_process", ("gpu_idle",), 7)
    assert (reading.ecc, reading.mig, reading.persistence, reading.memory_used_bytes) == (True, False, False, 0)
    assert monitor.sm_mhz(UUID) == 345
    assert NvmlMonitor(FakePynvml({"nvmlDeviceGetClockInfo"})).sm_mhz(UUID) is None
    assert (monitor.driver_version(), monitor.cuda_driver_version()) == ("580.159.03", "13.2")


def test_processes_of_both_kinds_are_listed_once_each() -> None:
    processes = NvmlMonitor(FakePynvml()).read(UUID).processes
    assert [(p.pid, p.kind, p.used_bytes) for p in processes] == [(7, "graphics", 4 * 2**20), (42, "compute", 2**30), (43, "compute", None)]
    assert str(processes[1]) == "/usr/bin/program42 (pid 42, compute, 1.0 GiB)"


def test_an_unreadable_value_is_none_with_its_reason() -> None:
    reading = NvmlMonitor(FakePynvml({"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"})).read(UUID)
    assert (reading.utilisation_percent, reading.power_w, reading.sm_mhz) == (None, None, 345)
    assert reading.unreadable == {"utilisation_percent": "Not Supported", "power_w": "Not Supported"}


def test_a_lost_gpu_reads_as_cannot_tell() -> None:
    monitor = NvmlMonitor(FakePynvml({"nvmlDeviceGetHandleByUUID"}))
    reading = monitor.read("GPU-gone")
    assert {"processes", "memory_used_bytes", "utilisation_percent"} <= set(reading.unreadable)


def test_an_old_driver_gives_its_reasons_under_the_old_name() -> None:
    reading = NvmlMonitor(FakePynvml({"nvmlDeviceGetCurrentClocksEventReasons"})).read(UUID)
    assert reading.clock_reasons == ("hw_thermal_slowdown",)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVML does not start"),
    ],
)
def test_an_nvml_that_does_not_start_says_why(code, message) -> None:
    with pytest.raises(GpuUnavailableError, match=message):
        NvmlMonitor(FakePynvml(code=code))


def test_reason_bits_agree_with_the_installed_pynvml() -> None:
    names = [name for name in dir(pynvml) if name.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason"))]
    spoken = {bit: [name.lower() for name in names if getattr(pynvml, name) == bit] for bit in CLOCK_REASONS}
    assert all(spoken[1 << shift] for shift in range(9)), "the nine oldest bits are in every pynvml"
    for bit, known in spoken.items():
        assert not known or any(name.endswith(CLOCK_REASONS[bit].replace("_", "")) for name in known), (hex(bit), known)


def test_several_and_unknown_bits_are_all_kept() -> None:
    assert decode_clock_reasons(0x44) == ("sw_power_cap", "hw_thermal_slowdown")
    assert decode_clock_reasons(0x8001) == ("gpu_idle", "bit_0x8000")
    assert decode_clock_reasons(0) == ()


@pytest.mark.gpu
def test_the_real_backend_reads_a_real_gpu() -> None:
    monitor = open_monitor()
    gpu = monitor.gpus()[0]
    reading = monitor.read(gpu.uuid)
    assert gpu.uuid.startswith("GPU-")
    assert gpu.memory_bytes > 2**30
    assert reading.processes is not None
    assert 0 <= reading.memory_used_bytes <= gpu.memory_bytes
    assert 0 <= reading.utilisation_percent <= 100
    assert 0 < reading.sm_mhz <= reading.max_sm_mhz
    assert reading.clock_reasons is not None
    assert reading.compute_mode in {"default", "exclusive_process"}
    assert monitor.driver_version()
    assert "." in monitor.cuda_driver_version()
