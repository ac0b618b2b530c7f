"""The names of the timers, and the choice of one for a device.  Importing this module imports no torch."""

from __future__ import annotations

from ...errors import UnknownNameError, UsageError
from ..arm import Timer
from .cuda_events import CudaEventTimer
from .cuda_graph import CudaGraphTimer
from .cupti import CuptiTimer
from .host import HostTimer

TIMERS = ("auto", "cupti", "cuda_events", "cuda_graph", "host")
_GPU_TIMERS = ("cupti", "cuda_events", "cuda_graph")


def require_timer(name: str, device_kind: str | None = None) -> None:
    """Check a timer's name, before any heavy import.

    Args:
        device_kind: `cpu`, `cuda`, or None if it is not known yet.

    Raises:
        UnknownNameError: no timer has this name.
        UsageError: the timer cannot time work of this device.
    """
    if name not in TIMERS:
        raise UnknownNameError("timer", name, TIMERS)
    if device_kind == "cuda" and name == "host":
        raise UsageError(
            "--timer host times the host, which only issues a GPU's work; take cupti, cuda_events or cuda_graph, or --device cpu"
        )
    if device_kind == "cpu" and name in _GPU_TIMERS:
        raise UsageError(f"--timer {name} times a GPU; take host on a CPU, or --device cuda")


def select_timer(device_kind: str, requested: str = "auto") -> tuple[Timer, str]:
    """The timer for `cpu` or `cuda`, and the reason where it is not the device's default (else empty).

    `requested` is `auto`, `cupti`, `cuda_events`, `cuda_graph` or `host`.  With `auto`, CUDA falls back to events where torch
    was built without CUPTI; a timer requested by name is never replaced.

    Raises:
        UnknownNameError, UsageError: as `require_timer`.
    """
    require_timer(requested, device_kind)
    if device_kind == "cpu":
        return HostTimer(), ""
    if requested == "cuda_events":
        return CudaEventTimer(), "asked for with --timer cuda_events"
    if requested == "cuda_graph":
        return CudaGraphTimer(), "asked for with --timer cuda_graph"
    if requested == "auto" and not _kineto_sees_cuda():
        return CudaEventTimer(), "torch's profiler has no CUPTI here"
    return CuptiTimer(), ""


def _kineto_sees_cuda() -> bool:
    import torch

    return torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
