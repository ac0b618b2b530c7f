"""Times the rounds of one replicate, in balanced orders: with a record of every launch, and with the host ahead of the device.

Inside a chain of launches the device should wait for itself only, so it gets a head start.  Sometimes the host takes longer.  Of the calls
of several launches in a nightly on an H200, one in 1140 idled over 20 us longer inside than usual for the arm, and no kernel is to blame.
It was one in ten of the first calls of a replicate, where the host has no more than that head start, and one in 6200 from the second round
on.  In a later nightly, five chains were late in up to ten of sixteen calls of a placement, by 100 us and more: for some tenths of a second
the host was slow.  Rounds with calls that waited for the host are timed again, with twice the head start for the arms that did.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import TimerError
from .arm import Arm, CallTiming, Timer

T = TypeVar("T")

RETRIES = 2
"""Number of repeats after a failure of the timer (missing records, for example), before the device counts as unfit."""
LATE_RETRIES = 4
"""Number of repeats of rounds in which the host was late.  Four doublings make 16 times the head start, and so 1 ms of 66 us: longer than
all but one of the stalls of that nightly."""
HOST_BOUND_SHARE = 0.9
"""An arm whose calls wait for the host more often than this always waits, and a repeat would not help.  A slow host was late in up to 10
of 16 calls of a placement."""


@dataclass
class TimedRounds:
    """The timings of the rounds of one replicate, and its repeats."""

    rounds: Sequence[Sequence[Arm]]
    timings: list[list[CallTiming]] = field(default_factory=list)
    """By round, in the order of its arms."""
    retries: int = 0
    """Number of failures of the timer."""
    repeated_rounds: int = 0
    """Rounds timed again because the host was late; a round counts once per repeat."""

    def calls(self) -> Iterator[tuple[Arm, CallTiming]]:
        """Calls and their timings, in order; empty until all rounds were timed once."""
        timed = zip(self.rounds, self.timings, strict=True) if self.timings else ()
        return (pair for order, told in timed for pair in zip(order, told, strict=True))

    @property
    def late_calls(self) -> Counter[str]:
        """By arm name, its calls that waited for the host."""
        return Counter(arm.name for arm, timing in self.calls() if timing.late)

    @property
    def outside_calls(self) -> Counter[str]:
        """By arm name, its calls with work that another thread or no call had launched."""
        return Counter(arm.name for arm, timing in self.calls() if timing.outside)


def time_rounds(
    rounds: Sequence[Sequence[Arm]], timer: Timer, prepare: Callable[[Arm], None], lengthen: Callable[[str], None] = lambda arm: None
) -> TimedRounds:
    """Time the calls of `rounds`, each a sequence of arms, in order.

    Args:
        lengthen: called with the name of each arm that waited for the host by chance, before its rounds are timed again; gives the host
            more of a head start.

    Raises:
        TimerError: the timer failed repeatedly (missing records, for example).
    """
    found = TimedRounds(rounds)
    found.timings = _time_whole(rounds, timer, prepare, found)
    for _ in range(LATE_RETRIES):
        by_chance = _late_by_chance(found)
        late = _late_rounds(found, by_chance)
        if not late:
            break
        for name in sorted(by_chance):
            lengthen(name)
        again = _time_whole([rounds[number] for number in late], timer, prepare, found)
        for number, timings in zip(late, again, strict=True):
            found.timings[number] = timings
        found.repeated_rounds += len(late)
    return found


def _late_by_chance(found: TimedRounds) -> set[str]:
    """Names of the arms with calls that waited for the host, except arms that always wait."""
    calls = Counter(arm.name for order in found.rounds for arm in order)
    return {name for name, count in found.late_calls.items() if count <= HOST_BOUND_SHARE * calls[name]}


def _late_rounds(found: TimedRounds, by_chance: set[str]) -> list[int]:
    """Numbers of the rounds in which a call of these arms waited for the host."""
    return [
        number
        for number, (order, told) in enumerate(zip(found.rounds, found.timings, strict=True))
        if any(timing.late and arm.name in by_chance for arm, timing in zip(order, told, strict=True))
    ]


def _time_whole(
    rounds: Sequence[Sequence[Arm]], timer: Timer, prepare: Callable[[Arm], None], found: TimedRounds
) -> list[list[CallTiming]]:
    """Timings by round, complete and consistent with those in `found`, where retries are counted."""
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
    """Check that an arm makes the same number of launches in every call; a difference means lost records.

    Raises:
        TimerError: the numbers differ.
    """
    by_arm: dict[str, Counter[int]] = {}
    calls = list(calls)
    threaded = {arm.name for arm, timing in calls if timing.outside}  # its own threads decide what a call holds: no fault of the records
    for arm, timing in calls:
        if arm.name not in threaded:
            by_arm.setdefault(arm.name, Counter())[timing.kernels] += 1
    for name, counts in by_arm.items():
        if len(counts) > 1:
            seen = ", ".join(f"{count} activities in {calls_} calls" for count, calls_ in sorted(counts.items()))
            raise TimerError(f"arm {name!r} left {seen}: records were dropped, or the kernel's launches vary from call to call")


def williams_design(arms: int) -> list[list[int]]:
    """Rows of a balanced design: `arms` rows for an even number, twice that for an odd one (a single row for one arm).

    A Williams design (E. J. Williams, 1949, "Experimental designs balanced for the estimation of residual effects of treatments") is a
    Latin square in which every arm follows every other arm equally often, so no arm profits from its place or its predecessor.  An even
    number of arms needs one square, an odd number a square and its mirror.

    Raises:
        ValueError: `arms` is below 1.
    """
    if arms < 1:
        raise ValueError(f"a round needs at least one arm, got {arms}")
    # 0, 1, n-1, 2, n-2, …: successive differences are all distinct modulo n.
    first = [0] + [(step + 1) // 2 if step % 2 else arms - step // 2 for step in range(1, arms)]
    square = [[(entry + shift) % arms for entry in first] for shift in range(arms)]
    return square if arms % 2 == 0 or arms == 1 else square + [row[::-1] for row in square]


def balanced_rounds(arms: Sequence[T], rounds: int, rng: random.Random) -> list[list[T]]:
    """`rounds` orders of `arms`: whole Williams designs with freshly shuffled labels and rows, the last one cut short."""
    orders: list[list[T]] = []
    while len(orders) < rounds:
        labels = list(arms)
        rng.shuffle(labels)
        rows = williams_design(len(labels))
        rng.shuffle(rows)
        orders += [[labels[index] for index in row] for row in rows]
    return orders[:rounds]
