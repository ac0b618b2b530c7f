"""The timer on a CPU: wall-clock time of the call, in the calling process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..clock import now_ns
from .arm import Arm, CallTiming


class HostTimer:
    name = "host"

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        timings = []
        for arm in calls:
            prepare(arm)
            start = now_ns()
            returned = arm.call()
            span = now_ns() - start
            arm.after(returned)
            del returned
            timings.append(CallTiming.of_whole(span))
        return timings
