"""Names of the timers and where each works, for checking a request before anything heavy is imported."""

from __future__ import annotations

from ..errors import UnknownNameError, UsageError

TIMERS = ("auto", "cupti", "cuda_events", "host")


def require_timer(name: str, device_kind: str | None = None) -> None:
    """Raise UnknownNameError for a timer that does not exist, UsageError for one that cannot time work of `cpu` or `cuda`."""
    if name not in TIMERS:
        raise UnknownNameError("timer", name, TIMERS)
    if device_kind == "cuda" and name == "host":
        raise UsageError("--timer host times the host, which only issues a GPU's work; take cupti or cuda_events, or --device cpu")
    if device_kind == "cpu" and name in ("cupti", "cuda_events"):
        raise UsageError(f"--timer {name} times a GPU; take host on a CPU, or --device cuda")
