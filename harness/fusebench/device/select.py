"""Resolves `auto`, `cpu`, `cuda` or `cuda:N` to one GPU by UUID, or to the CPU."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import UsageError
from ..naming import device_slug
from . import nvml as nvml_backend
from .readings import GpuIdentity, GpuMonitor, GpuUnavailableError
from .visible import Visible, visible_gpus

_SPEC = re.compile(r"auto|cpu|cuda(?::(?P<index>\d+))?")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device to measure on."""

    kind: Literal["cpu", "cuda"]
    name: str
    index: int = 0
    """torch's index among the GPUs that CUDA_VISIBLE_DEVICES leaves; 0 for the CPU."""
    nvml_index: int | None = None
    uuid: str = ""
    """`GPU-…` or `MIG-…`; empty for the CPU."""
    parent_uuid: str = ""
    """The whole GPU's UUID where this is a MIG instance."""
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    """None: NVML does not report it; a worker with a context can."""
    warnings: tuple[str, ...] = ()
    """Remarks for the user on how this device was found."""
    label: str = ""
    """`cuda:1` as the user names it, in a process that sees this device alone, as `cuda:0`; empty where `torch_name` is that name."""

    @property
    def torch_name(self) -> str:
        """The name for `torch.device`: `cpu` or `cuda:0`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def slug(self) -> str:
        """The model as a folder name: `nvidia_h200`."""
        return device_slug(self.name)

    @property
    def lock_key(self) -> str:
        """The key of the device's lock: the whole GPU (MIG instances share clocks and power), or this host's CPU."""
        return self.parent_uuid or self.uuid or f"cpu-{platform.node() or 'host'}"

    def __str__(self) -> str:
        named = self.label or self.torch_name
        return f"{self.name} ({named}, {self.uuid})" if self.kind == "cuda" else f"{self.name} ({named})"


def require_spec(spec: str) -> re.Match[str]:
    """Check the form of `spec`; its match has the group `index`.

    Raises:
        UsageError: it has none of the four forms.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        more = "run and calibrate also take all, or a list such as cuda:0,2-3"
        raise UsageError(f"--device {spec!r}: expected auto, cpu, cuda or cuda:N (N from 0); {more}")
    return match


def resolve_device(spec: str = "auto", nvml: GpuMonitor | None = None, *, environ: Mapping[str, str] | None = None) -> Device:
    """The device of `spec` in this environment.

    `auto` is the first visible GPU, else the CPU.  `cuda` is cuda:0.  Without `nvml`, the driver's own library is used.

    Raises:
        UsageError: `spec` has none of the four forms.
        GpuUnavailableError: `spec` names a GPU and none is available; the message gives the cause.
    """
    match = require_spec(spec)
    if spec == "cpu":
        return _cpu(())
    environment = os.environ if environ is None else environ
    try:
        monitor = nvml if nvml is not None else nvml_backend.open_monitor()
        gpus = monitor.gpus()
        visible = visible_gpus(gpus, monitor.mig_instances(), environment)
    except GpuUnavailableError as error:
        if spec == "auto":
            return _cpu((_instead_of_a_gpu(error.cause, error.remedy),))
        raise GpuUnavailableError(error.cause, error.remedy, spec) from error
    index = int(match["index"] or 0)
    if index < len(visible.gpus):
        return _gpu(visible.gpus[index], index, visible.warnings)
    if visible.gpus:
        known = ", ".join(f"cuda:{i} {gpu.name}" for i, gpu in enumerate(visible.gpus))
        raise GpuUnavailableError("there is no such GPU", f"visible are {known}", spec)
    cause, remedy = _why_none(visible, len(gpus), environment)
    if spec == "auto":
        return _cpu((_instead_of_a_gpu(cause, remedy),))
    raise GpuUnavailableError(cause, remedy, spec)


def _instead_of_a_gpu(cause: str, remedy: str) -> str:
    return f"measuring on the CPU: {cause}; for a GPU, {remedy}; --device cuda refuses the CPU"


def _why_none(visible: Visible, count: int, environ: Mapping[str, str]) -> tuple[str, str]:
    if count == 0:
        return "the NVIDIA driver is there but finds no GPU", "pass one into this machine or container"
    setting = environ.get("CUDA_VISIBLE_DEVICES")
    hidden = f"{count} GPU{'s' if count > 1 else ''} present, all hidden by CUDA_VISIBLE_DEVICES={setting!r}"
    return "; ".join((hidden, *visible.warnings)), "unset it, or name one of them"


def _gpu(gpu: GpuIdentity, index: int, warnings: tuple[str, ...]) -> Device:
    if gpu.mig_enabled:
        partitioned = "the GPU is partitioned (MIG): CUDA will use its first instance; name one in CUDA_VISIBLE_DEVICES=MIG-…"
        warnings = (*warnings, partitioned)
    return Device(
        kind="cuda",
        name=gpu.name,
        index=index,
        nvml_index=gpu.nvml_index,
        uuid=gpu.uuid,
        parent_uuid=gpu.parent_uuid,
        compute_capability=gpu.compute_capability,
        memory_bytes=gpu.memory_bytes,
        warnings=warnings,
    )


def _cpu(warnings: tuple[str, ...]) -> Device:
    import psutil

    return Device(kind="cpu", name=cpu_model(), memory_bytes=psutil.virtual_memory().total, warnings=warnings)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name, or the architecture where the system does not report it."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine() or "unknown CPU"
