"""Names of the timers and where each works, for checking a request before anything heavy is imported."""

from __future__ import annotations

from ..errors import UnknownNameError, UsageError

TIMERS = ("auto", "cupti", "cuda_events", "cuda_graph", "host")
_GPU_TIMERS = ("cupti", "cuda_events", "cuda_graph")


def require_timer(name: str, device_kind: str | None = None) -> None:
    """Raise UnknownNameError for a timer that does not exist, UsageError for one that cannot time work of `cpu` or `cuda`."""
    if name not in TIMERS:
        raise UnknownNameError("timer", name, TIMERS)
    if device_kind == "cuda" and name == "host":
        raise UsageError(
            "--timer host times the host, which only issues a GPU's work; take cupti, cuda_events or cuda_graph, or --device cpu"
        )
    if device_kind == "cpu" and name in _GPU_TIMERS:
        raise UsageError(f"--timer {name} times a GPU; take host on a CPU, or --device cuda")
