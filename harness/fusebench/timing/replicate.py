"""Times the rounds of one replicate: whole, with a record of everything that was launched, and with the host ahead of the device.

Inside a chain of launches the device should wait for nothing but itself.  It is given a head start for that, which the host now and then
outlasts: of the calls of several launches in a nightly on an H200, one in 1140 idled over 20 us longer inside than the arm's calls usually
do, for which no kernel is to blame.  It was one in ten of those that the timer makes first, when the host has gained no more than that head
start, and one in 6200 from the second round on.  Rounds with calls that waited for the host are timed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import TimerError
from .arm import Arm, CallTiming, Timer

RETRIES = 2
"""Times that calls on which the timer failed, as where records are missing, are repeated before it is declared unfit."""
LATE_RETRIES = 2
"""Times that rounds are repeated in which the host came late."""
HOST_BOUND_SHARE = 0.5
"""An arm whose calls wait for the host more often than this always does, and to time its rounds again would change nothing."""


@dataclass
class TimedRounds:
    """What the timer said of the rounds of one replicate, and what had to be repeated for that."""

    rounds: Sequence[Sequence[Arm]]
    timings: list[list[CallTiming]] = field(default_factory=list)
    """By round, in the order of its arms."""
    retries: int = 0
    """Times that the timer failed."""
    repeated_rounds: int = 0
    """Rounds that were timed again since the host came late, each as often as it was."""

    def calls(self) -> Iterator[tuple[Arm, CallTiming]]:
        """What was called and how that was timed, in order; nothing before all rounds were timed once."""
        timed = zip(self.rounds, self.timings, strict=True) if self.timings else ()
        return (pair for order, told in timed for pair in zip(order, told, strict=True))

    @property
    def late_calls(self) -> Counter[str]:
        """By name of an arm, how many of its calls waited for the host."""
        return Counter(arm.name for arm, timing in self.calls() if timing.late)


def time_rounds(rounds: Sequence[Sequence[Arm]], timer: Timer, prepare: Callable[[Arm], None]) -> TimedRounds:
    """Time the calls of `rounds`, each a sequence of arms, in order.

    Raises:
        TimerError: the timer failed again and again, as where records are missing.
    """
    found = TimedRounds(rounds)
    found.timings = _time_whole(rounds, timer, prepare, found)
    for _ in range(LATE_RETRIES):
        late = _late_rounds(found)
        if not late:
            break
        again = _time_whole([rounds[number] for number in late], timer, prepare, found)
        for number, timings in zip(late, again, strict=True):
            found.timings[number] = timings
        found.repeated_rounds += len(late)
    return found


def _late_rounds(found: TimedRounds) -> list[int]:
    """Numbers of the rounds with a call that waited for the host, other than those of arms that always do."""
    calls = Counter(arm.name for order in found.rounds for arm in order)
    by_chance = {name for name, count in found.late_calls.items() if count <= HOST_BOUND_SHARE * calls[name]}
    return [
        number
        for number, (order, told) in enumerate(zip(found.rounds, found.timings, strict=True))
        if any(timing.late and arm.name in by_chance for arm, timing in zip(order, told, strict=True))
    ]


def _time_whole(
    rounds: Sequence[Sequence[Arm]], timer: Timer, prepare: Callable[[Arm], None], found: TimedRounds
) -> list[list[CallTiming]]:
    """Timings by round, of which none lacks a record, also beside what was `found` so far, where retries are counted."""
    calls = [arm for order in rounds for arm in order]
    for attempt in range(RETRIES + 1):
        problem: TimerError
        try:
            timed = timer.time_calls(calls, prepare)
            _require_same_launches([*found.calls(), *zip(calls, timed, strict=True)])
            remaining = iter(timed)
            return [[next(remaining) for _ in order] for order in rounds]
        except TimerError as error:
            problem = error
        if attempt < RETRIES:
            found.retries += 1
    raise problem


def _require_same_launches(calls: Iterable[tuple[Arm, CallTiming]]) -> None:
    """An arm that launches n kernels in one call launches n in every call; anything else means lost records."""
    by_arm: dict[str, Counter[int]] = {}
    for arm, timing in calls:
        by_arm.setdefault(arm.name, Counter())[timing.kernels] += 1
    for name, counts in by_arm.items():
        if len(counts) > 1:
            seen = ", ".join(f"{count} activities in {calls_} calls" for count, calls_ in sorted(counts.items()))
            raise TimerError(f"arm {name!r} left {seen}: records were dropped, or the kernel's launches vary from call to call")
