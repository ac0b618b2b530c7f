"""Which timer a device gets, and why it did not get its default one."""

from __future__ import annotations

from .arm import Timer
from .cuda_events import CudaEventTimer
from .cuda_graph import CudaGraphTimer
from .cupti import CuptiTimer
from .host import HostTimer
from .names import require_timer


def select_timer(device_kind: str, requested: str = "auto") -> tuple[Timer, str]:
    """The timer for `cpu` or `cuda`, and the reason where it is not the device's default (empty otherwise).

    `requested` is `auto`, `cupti`, `cuda_events`, `cuda_graph` or `host`.  With `auto`, CUDA falls back to events where torch
    was built without CUPTI; a timer asked for by name is never replaced.

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
