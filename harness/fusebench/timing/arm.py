"""The unit of timing: an arm is one callable with its own buffers, a `CallTiming` is a timer's figure for one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


def _ignore(returned: Any) -> None:
    """What follows a call that nobody watches: nothing."""


@dataclass(frozen=True)
class Arm:
    """One kernel or yardstick of a comparison.

    `call` runs it once; `restore` puts back the inputs that a call overwrites, or gives inputs new values, and runs before every timed
    call, outside it.  `after` gets what a timed call returned, right after the call's clock stopped.
    """

    name: str
    call: Callable[[], object]
    restore: Callable[[], None]
    after: Callable[[Any], None] = _ignore


class CallTiming(NamedTuple):
    """One timed call, in nanoseconds."""

    span_ns: int
    """First device activity's start to the last one's end."""
    busy_ns: int
    """Union of the activities' intervals."""
    kernels: int
    """Device activities (kernels, copies, fills) of the call; 0 if the timer cannot see them."""
    late: bool = False
    """Whether the device waited inside the call for the host to begin the next launch.  Such a gap is not the device's.  False if the
    timer cannot see that."""
    outside: int = 0
    """Activities among `kernels` that were launched by another thread or after the call had returned."""

    @classmethod
    def of_whole(cls, span_ns: int) -> CallTiming:
        """The timing of a call that the timer sees only as a whole."""
        return cls(span_ns=span_ns, busy_ns=span_ns, kernels=0)


class Timer(Protocol):
    """Times calls in the order given."""

    name: str

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        """For each arm in turn: `prepare(arm)` untimed, its call, timed, and `arm.after`, untimed.  Returns one timing per call, in
        order."""
        ...
