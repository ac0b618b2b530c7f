"""Attributes device activities to calls, from the records of torch's profiler.

Each call runs inside a range, and so does the work between calls.  The profiler numbers ranges in the order of their start and tags every
launch with the number of the innermost range (CUPTI's external correlation id).  A device activity belongs to the last range whose number
is not greater than its tag.  Names and timestamps play no part.

Launches of other threads carry no tag, because ranges belong to the thread that opened them.  Such work counts to the range in which the
host began the launch; work begun after a call had returned counts to that call, and is told as `outside`.  So neither a side stream that is
never joined nor a thread takes work out of a call's span.

CUPTI drops records when its buffers run out, and Kineto hands out no counter of drops.  So a loss is detected from the remaining records:
every range must be there; every launch that the host recorded within a call must have its activity (both carry CUPTI's own correlation
id); every call must have an activity; and `replicate` requires an equal number of launches in every call of an arm.

The host's record of a launch has its start time.  A call is `late` when the device finished all earlier activities of the call before the
host began the next launch.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import TimerError
from ..arm import CallTiming

BETWEEN = "fusebench:between"
"""Name of the ranges between calls, and before the first and after the last one."""
CALL = "fusebench:call:"
"""Prefix of the name of a call's range; the call's number follows, from 0."""
_INTERFACES = "cu"
"""Prefixes of the host's records of runtime (`cuda...`) and driver calls, copies and fills included."""
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel")
"""Prefixes of the host's records of kernel launches by the runtime and the driver interface (which Triton uses)."""


_Activity = tuple[int, int, int, int, str]
"""Start and end in nanoseconds, tag, CUPTI's correlation id (the launch has the same), name.  A plain tuple: a replicate has thousands."""


class _Records:
    """The events of a profile, by kind."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.ranges: list[tuple[int, int]] = []
        """Range number and call number, in order of start; -1 for a range between calls."""
        self.activities: list[_Activity] = []
        self.launches: list[tuple[int, int, str]] = []
        """Tag, correlation id and name of the host's kernel launches."""
        self.opened_ns: list[tuple[int, int]] = []
        """Start of each range in nanoseconds and its call number, in order."""
        self.begun_ns: dict[tuple[int, int], int] = {}
        """By tag and correlation id, the time at which the host began the launch, copy or fill."""
        for event in events:
            name = event.name()
            if _is_device(event):
                if not event.is_user_annotation():  # a range's shadow on the device's timeline is no activity
                    self.activities.append((event.start_ns(), event.end_ns(), event.linked_correlation_id(), event.correlation_id(), name))
            elif name.startswith(_INTERFACES):
                tag, number = event.linked_correlation_id(), event.correlation_id()
                self.begun_ns[tag, number] = event.start_ns()
                if name.startswith(_LAUNCHES):
                    self.launches.append((tag, number, name))
            elif name.startswith(CALL):
                self._open(event, int(name.removeprefix(CALL)))
            elif name == BETWEEN:
                self._open(event, -1)
        self.ranges.sort()
        self.opened_ns.sort()
        self._starts = [number for number, _ in self.ranges]

    def _open(self, event: Any, call: int) -> None:
        self.ranges.append((event.correlation_id(), call))
        self.opened_ns.append((event.start_ns(), call))

    def call_in_time(self, tag: int, number: int) -> tuple[int, bool] | None:
        """The last call that began before the host launched the activity, and whether it had returned; None if that is not known."""
        begun = self.begun_ns.get((tag, number))
        if begun is None:
            return None
        place = bisect.bisect_right(self.opened_ns, (begun, len(self.ranges))) - 1
        calls = [call for _, call in self.opened_ns[max(0, place - 1) : place + 1]]
        if place < 0 or max(calls) < 0:
            return None
        return max(calls), calls[-1] < 0

    def call_of(self, tag: int) -> int | None:
        """The number of the call with this tag: -1 between calls, None if the tag belongs to no range."""
        place = bisect.bisect_right(self._starts, tag) - 1
        return self.ranges[place][1] if place >= 0 else None


def attribute(events: Iterable[Any], names: Sequence[str], *, first_kept: bool = True) -> list[CallTiming]:
    """Group device activities by the call that issued them.

    Args:
        events: the profiler's events: each has `name`, `device_type`, `is_user_annotation`, `correlation_id`,
            `linked_correlation_id`, `start_ns` and `end_ns` methods.
        names: arm name of each call, in order, for messages.
        first_kept: whether the first call was requested.  Otherwise it gets no timing, and messages count from the next call.

    Raises:
        TimerError: a range is missing, an activity carries no tag, or a launch or a call has no activity; also in a call that is not kept.
    """
    calls = _as_asked_for(names, first_kept)
    records = _Records(events)
    # With one range more or less, a call would get the activities between two calls.
    due = [-1, *(number for index in range(len(calls)) for number in (index, -1))]
    if [index for _, index in records.ranges] != due:
        kept = f"the profiler kept {len(records.ranges)} ranges of {len(due)}{_missing(records.ranges, calls)}"
        raise TimerError(f"{kept}; records were dropped, so no call can be attributed")
    by_call: list[list[_Activity]] = [[] for _ in calls]
    outside = [0 for _ in calls]
    for activity in records.activities:
        _, _, tag, number, name = activity
        index = records.call_of(tag)
        if index is None:
            in_time = records.call_in_time(tag, number)
            if in_time is None:
                raise TimerError(
                    f"device activity {name!r} carries no correlation to any call (tag {tag}); it may have been launched by another thread"
                )
            index, returned = in_time
            outside[index] += returned
        if index >= 0:
            by_call[index].append(activity)
    _require_activities(records, calls)
    for call, found in zip(calls, by_call, strict=True):
        if not found:
            raise TimerError(f"{call} left no device activity: it launched nothing, or CUPTI dropped its records")
    first = 0 if first_kept else 1
    return [_timing(found, records.begun_ns)._replace(outside=late) for found, late in zip(by_call[first:], outside[first:], strict=True)]


def _as_asked_for(names: Sequence[str], first_kept: bool) -> list[str]:
    """The name of each call in messages: its number among the requested calls, which a reader can count."""
    if first_kept:
        return [f"call {number} of arm {name!r}" for number, name in enumerate(names)]
    return [*(f"the extra first call (of arm {name!r}, not kept)" for name in names[:1]), *_as_asked_for(names[1:], True)]


def _require_activities(records: _Records, calls: Sequence[str]) -> None:
    """Check that every launch within a call has its activity.

    Where no launch of an interface shares its id with an activity, this torch numbers the two separately, and the check is impossible.

    Raises:
        TimerError: a launch within a call has no activity.
    """
    recorded = {number for _, _, _, number, _ in records.activities}
    matched = {name for _, number, name in records.launches if number in recorded}
    lost: dict[int, int] = {}
    for tag, number, name in records.launches:
        if number not in recorded and name in matched:
            index = records.call_of(tag)
            if index is not None and index >= 0:
                lost[index] = lost.get(index, 0) + 1
    if lost:
        index, count = next(iter(sorted(lost.items())))
        raise TimerError(
            f"{calls[index]} made {count} launches that left no device activity, as did calls of {len(lost)} in all: "
            "CUPTI dropped their records"
        )


def _missing(ranges: Sequence[tuple[int, int]], calls: Sequence[str]) -> str:
    kept = {index for _, index in ranges}
    lost = [call for index, call in enumerate(calls) if index not in kept]
    return f", without {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}" if lost else ""


def _is_device(event: Any) -> bool:
    return _is_cuda(event.device_type())


@functools.cache
def _is_cuda(kind: Any) -> bool:
    """By the enum's own spelling, `DeviceType.CUDA`, so that attribution needs no torch.  Cached, because spelling takes 1.5 us."""
    return str(kind).endswith("CUDA")


def _timing(activities: list[_Activity], begun_ns: dict[tuple[int, int], int]) -> CallTiming:
    """The timing of one call from its activities, and from the host's start times where these are known."""
    activities.sort()
    busy, late = 0, False
    first = reached = activities[0][0]
    for place, (start, end, tag, number, _) in enumerate(activities):
        late |= place > 0 and begun_ns.get((tag, number), 0) > reached
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return CallTiming(span_ns=reached - first, busy_ns=busy, kernels=len(activities), late=late)
