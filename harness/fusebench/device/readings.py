"""Readings of a GPU: the value types, and the protocol that the real backend (`nvml.py`) and test fakes implement.

Memory is bytes, clocks MHz, temperature degrees Celsius, power watts, utilisation percent.  A value that could not be read is None, with
its reason in `unreadable` under the field's name.  Readers decide what follows; nothing is raised.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from ..errors import DeviceUnfitError, RemediedError

CLOCK_REASONS: dict[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of NVML's clocks event reasons (called throttle reasons before driver 535): nvml.h, nvmlClocksEventReasons."""

SLOWDOWN_REASONS = frozenset({"hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Clock reasons that make a time invalid.

Not among them: `gpu_idle` and `applications_clocks_setting` (a chosen state), and `sw_power_cap` (the board's own limit: real work meets it
on every run, and waiting does not remove it; it is recorded).
"""


class GpuUnavailableError(RemediedError, DeviceUnfitError):
    """There is no GPU to use: no driver, no GPU, or none visible."""

    def __init__(self, cause: str, remedy: str, asked: str = "") -> None:
        super().__init__(cause, remedy)
        self.asked = asked

    def __str__(self) -> str:
        return f"--device {self.asked}: {super().__str__()}, or use --device cpu" if self.asked else super().__str__()


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a context on the GPU."""

    pid: int
    name: str
    used_bytes: int | None
    """None if the driver does not report it (unprivileged containers)."""
    kind: Literal["compute", "graphics"]

    def __str__(self) -> str:
        memory = "memory unknown" if self.used_bytes is None else format_bytes(self.used_bytes)
        return f"{self.name} (pid {self.pid}, {self.kind}, {memory})"


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Constant facts of a GPU while the machine is up."""

    nvml_index: int
    """NVML's index, in order of the PCI bus."""
    uuid: str
    """`GPU-…`, or `MIG-…` for an instance of a partitioned GPU."""
    name: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int | None
    mig_enabled: bool = False
    parent_uuid: str = ""
    """The whole GPU's UUID where this is a MIG instance."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of one GPU."""

    processes: tuple[GpuProcess, ...] | None = None
    memory_used_bytes: int | None = None
    """Allocated memory in bytes, without the driver's own reserve."""
    utilisation_percent: int | None = None
    """Share of the driver's last sample period (1/6 to 1 s) in which a kernel ran."""
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    max_sm_mhz: int | None = None
    max_mem_mhz: int | None = None
    memory_bus_bits: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    compute_mode: str | None = None
    """`default`, `exclusive_thread`, `prohibited` or `exclusive_process`."""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    unreadable: dict[str, str] = {}
    """Field name -> why it is None."""


class GpuMonitor(Protocol):
    """Reads GPUs.  Safe to use from several threads."""

    def driver_version(self) -> str | None: ...

    def cuda_driver_version(self) -> str | None:
        """Newest CUDA version that the driver supports, as `major.minor`."""
        ...

    def gpus(self) -> list[GpuIdentity]:
        """Whole GPUs in NVML's (PCI) order, whatever CUDA_VISIBLE_DEVICES says."""
        ...

    def mig_instances(self) -> list[GpuIdentity]: ...

    def read(self, uuid: str) -> GpuReading:
        """The GPU or MIG instance with this UUID, now.  Never raises for a value that cannot be read."""
        ...


def decode_clock_reasons(bits: int) -> tuple[str, ...]:
    """Names of the set bits, lowest first; a bit that this table does not know is kept as `bit_0x…`."""
    names = [name for bit, name in CLOCK_REASONS.items() if bits & bit]
    rest = bits & ~sum(CLOCK_REASONS)
    return (*names, *([f"bit_{rest:#x}"] if rest else []))


def format_bytes(count: int) -> str:
    """`512 MiB` or `4.3 GiB`."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
