"""What a call costs besides device time: the host's time to issue it, and the memory it allocates."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from .arm import Arm

if TYPE_CHECKING:
    import torch

HOST_CALLS = 30
"""Calls whose median is the host cost; few enough that the launch queue (1024 entries) never fills and blocks the host."""


def host_cost_us(arm: Arm) -> float:
    """Median host time, in microseconds, for `arm.call` to return on an idle GPU with its work merely queued."""
    import torch

    costs = []
    for _ in range(HOST_CALLS):
        arm.restore()
        start = time.perf_counter_ns()
        arm.call()
        costs.append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return statistics.median(costs)


def extra_memory_bytes(arm: Arm, device: torch.device) -> int:
    """Peak device memory that one call allocates beyond what was allocated before it."""
    import torch

    arm.restore()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = arm.call()  # a call's results count as its memory
    peak = torch.cuda.max_memory_allocated(device)
    del kept
    return int(peak - before)
