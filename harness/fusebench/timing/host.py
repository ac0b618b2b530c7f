"""The timer on a CPU: wall-clock time of the call, in the calling process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .arm import Arm, CallTiming


class HostTimer:
    name = "host"

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        timings = []
        for arm in calls:
            prepare(arm)
            start = time.perf_counter_ns()
            arm.call()
            span = time.perf_counter_ns() - start
            timings.append(CallTiming.of_whole(span))
        return timings
