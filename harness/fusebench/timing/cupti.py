"""The default timer on CUDA: CUPTI activity records, read through torch's profiler.

Each call runs inside a range, and so does what happens between calls.  The profiler numbers ranges in the order in which they start, and
tags every launch with the number of the innermost one (CUPTI's external correlation id).  A device activity therefore belongs to the last
range whose number is not greater than its tag: no name and no timestamp is consulted.

CUPTI drops records where its buffers run out, and Kineto hands out no counter of that.  So loss is told from what is left: every range must
be there, every launch that the host recorded within a call must have its activity (both carry CUPTI's own correlation id), every call
must have one, and `replicate` asks that an arm launches as much in every call.

The host's record of a launch also says when it began.  An activity of a call that the host had not begun to launch when those before it
were over kept the device waiting: such a call is `late`.

Device times are those of the activity records, without the constant of about 2.8 us that CUDA events add.  They tick in 32 ns on an
H200.
"""

from __future__ import annotations

import bisect
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import TimerError
from .arm import Arm, CallTiming

if TYPE_CHECKING:
    import torch

_BETWEEN = "fusebench:between"
_CALL = "fusebench:call:"
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")
"""How the host's records of kernel launches begin, of the runtime and of the driver interface (which Triton uses)."""


class CuptiTimer:
    """Times calls by their activity records.  Raises TimerError when a call left none or a record belongs to no range."""

    name = "cupti"

    def __init__(self, kineto_config: str = "") -> None:
        """`kineto_config`: lines of Kineto's configuration.  Its buffers are 4 MB each, which cannot be changed; only their number can, by
        `ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB`.  A replicate (some 400 calls, 6 records of about 200 bytes each) fills an eighth of one, so
        none is handed over, which would stall the launching thread, before the last call is timed."""
        self._kineto_config = kineto_config

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        return attribute(self.record(calls, prepare), [arm.name for arm in calls])

    def record(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[Any]:
        """Make the calls and return the profiler's events, for `attribute`."""
        import torch
        from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
        from torch.profiler import ProfilerActivity, profile

        # One cycle is all there is.  `acc_events`, which silences torch's warning of that, makes the profiler build its own tables of all
        # events at once: 0.7 s for the twelve replicates of a case, and nothing of it is read.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Pp]rofiler clears events")
            # The backend's own line ends where the first of ours begins.
            lines = _ExperimentalConfig(custom_profiler_config=f"\n{self._kineto_config}") if self._kineto_config else None
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], experimental_config=lines) as profiler:
                for index, arm in enumerate(calls):
                    with _RecordFunctionFast(_BETWEEN), _without_operators():
                        prepare(arm)
                    with _RecordFunctionFast(f"{_CALL}{index}"), _without_operators():
                        arm.call()
                with _RecordFunctionFast(_BETWEEN):
                    torch.cuda.synchronize()
        return list(profiler.profiler.kineto_results.events())


def start_profiler(device: torch.device) -> None:
    """Profile one small launch on `device`, a CUDA device that is the current one, and wait for it.

    The first profile of a process loads CUPTI and attaches it, which takes some 3 s on an H200.  Raises whatever torch raises.
    """
    import torch

    x = torch.zeros(1, device=device)
    CuptiTimer().record([Arm("start", x.neg_, lambda: None)], lambda arm: None)


@contextmanager
def _without_operators() -> Iterator[None]:
    """Within it operators leave no records; launches do, and carry the number of the range around them all the same.

    Kineto takes some 9 us for every record when it stops, which was most of what a timed call cost.
    """
    from torch._C._autograd import _enable_record_function

    _enable_record_function(False)
    try:
        yield
    finally:
        _enable_record_function(True)


def attribute(events: Iterable[Any], names: Sequence[str]) -> list[CallTiming]:
    """Group device activities by the call that issued them.

    Args:
        events: the profiler's events: each has `name`, `device_type`, `is_user_annotation`, `correlation_id`,
            `linked_correlation_id`, `start_ns` and `end_ns` methods.
        names: name of the arm of each call, in order, for messages.

    Raises:
        TimerError: a range is missing, an activity carries no tag, or a launch or a call has no activity.
    """
    ranges: list[tuple[int, int]] = []
    activities: list[tuple[int, int, int, int, str]] = []
    launches: list[tuple[int, int, str]] = []
    recorded: set[int] = set()
    begun: dict[tuple[int, int], int] = {}
    for event in events:
        name = event.name()
        if _is_device(event):
            if not event.is_user_annotation():  # the shadow that a range casts on the device's timeline is no activity
                number = event.correlation_id()
                activities.append((event.linked_correlation_id(), number, event.start_ns(), event.end_ns(), name))
                recorded.add(number)
        elif name.startswith(_LAUNCHES):
            tag, number = event.linked_correlation_id(), event.correlation_id()
            launches.append((tag, number, name))
            begun[tag, number] = event.start_ns()
        elif name.startswith(_CALL):
            ranges.append((event.correlation_id(), int(name.removeprefix(_CALL))))
        elif name == _BETWEEN:
            ranges.append((event.correlation_id(), -1))
    ranges.sort()
    # One range more or less would hand what happens between two calls to one of them.
    due = [-1, *(number for index in range(len(names)) for number in (index, -1))]
    if [index for _, index in ranges] != due:
        kept = f"the profiler kept {len(ranges)} ranges of {len(due)}{_missing(ranges, names)}"
        raise TimerError(f"{kept}; records were dropped, so no call can be attributed")
    starts = [number for number, _ in ranges]
    intervals: list[list[tuple[int, int, int]]] = [[] for _ in names]
    for tag, number, start, end, name in activities:
        place = bisect.bisect_right(starts, tag) - 1
        if place < 0:
            raise TimerError(
                f"device activity {name!r} carries no correlation to any call (tag {tag}); it may have been launched by another thread"
            )
        index = ranges[place][1]
        if index >= 0:
            intervals[index].append((start, end, begun.get((tag, number), 0)))
    _require_activities(launches, recorded, ranges, names)
    for index, found in enumerate(intervals):
        if not found:
            raise TimerError(
                f"call {index} of arm {names[index]!r} left no device activity: it launched nothing, or CUPTI dropped its records"
            )
    return [_timing(found) for found in intervals]


def _require_activities(
    launches: Sequence[tuple[int, int, str]], recorded: set[int], ranges: Sequence[tuple[int, int]], names: Sequence[str]
) -> None:
    """Raise TimerError for a launch within a call whose activity was not recorded.

    Where not one launch of an interface shares its id with an activity, this torch numbers the two apart, and there is nothing to match.
    """
    matched = {name for _, number, name in launches if number in recorded}
    starts = [number for number, _ in ranges]
    lost: dict[int, int] = {}
    for tag, number, name in launches:
        if name not in matched:
            continue
        place = bisect.bisect_right(starts, tag) - 1
        if place >= 0 and (index := ranges[place][1]) >= 0 and number not in recorded:
            lost[index] = lost.get(index, 0) + 1
    if lost:
        index, count = next(iter(sorted(lost.items())))
        raise TimerError(
            f"call {index} of arm {names[index]!r} made {count} launches that left no device activity, as did calls of {len(lost)} in all: "
            "CUPTI dropped their records"
        )


def _missing(ranges: Sequence[tuple[int, int]], names: Sequence[str]) -> str:
    kept = {index for _, index in ranges}
    lost = [f"call {index} of arm {name!r}" for index, name in enumerate(names) if index not in kept]
    return f", without {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}" if lost else ""


def _is_device(event: Any) -> bool:
    return _is_cuda(event.device_type())


@functools.cache
def _is_cuda(kind: Any) -> bool:
    """By the enum's own spelling, `DeviceType.CUDA`, so that attribution needs no torch; remembered, for spelling it takes 1.5 us."""
    return str(kind).endswith("CUDA")


def _timing(intervals: list[tuple[int, int, int]]) -> CallTiming:
    """Of activities by their start, their end and when the host began to launch them (0 where that is not known)."""
    intervals.sort()
    busy, late = 0, False
    first = reached = intervals[0][0]
    for place, (start, end, begun) in enumerate(intervals):
        late |= place > 0 and begun > reached
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return CallTiming(span_ns=reached - first, busy_ns=busy, kernels=len(intervals), late=late)
