"""The timer on a CPU: wall-clock time of the call in the calling thread, without the time for which that thread waited for a core.

A core that other programs use too takes turns among them.  On two cores beside seven busy processes, a call of 4 ms took 12 ms of
wall-clock time, and no kernel is to blame.  Linux counts for each thread how long it was ready to run and had no core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import pread

from ...clock import now_ns
from ..arm import Arm, CallTiming

SCHEDULING = "/proc/thread-self/schedstat"
"""Of the thread that opens it: nanoseconds on a core, nanoseconds ready without a core, number of turns (Linux, sched-stats.rst)."""


class HostTimer:
    name = "host"

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        timings = []
        with waiting_time() as waited_ns:
            for arm in calls:
                prepare(arm)
                before, waited = now_ns(), waited_ns()
                start = now_ns()
                returned = arm.call()
                end = now_ns()
                waited = waited_ns() - waited
                # The core may also be lost while the waiting time is read, outside the call: that much is not taken off the call's time.
                outside = now_ns() - end + start - before
                arm.after(returned)
                del returned
                timings.append(CallTiming.of_whole(without_waiting(end - start, waited - outside)))
        return timings


def without_waiting(elapsed: int, waited: int) -> int:
    """The time of a call without its waits for a core, in nanoseconds.

    Linux counts a wait when it ends, by a clock of its own.  A count as long as the call itself is not of this call: nothing is taken off.
    """
    return elapsed - waited if 0 < waited < elapsed else elapsed


@contextmanager
def waiting_time() -> Iterator[Callable[[], int]]:
    """A function that returns how long, in nanoseconds, the calling thread has waited for a core so far.

    It always returns 0 where the system does not count that: the times are then plain wall-clock times.
    """
    descriptor = -1
    with suppress(OSError):
        descriptor = os.open(SCHEDULING, os.O_RDONLY)
    try:
        counted = descriptor >= 0 and len(pread(descriptor, 96, 0).split()) == 3
        yield (lambda: int(pread(descriptor, 96, 0).split()[1])) if counted else (lambda: 0)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
