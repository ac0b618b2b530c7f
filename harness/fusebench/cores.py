"""How many processor cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity, where the system tells it, else all."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
