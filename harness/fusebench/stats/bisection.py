"""Binary search for the first slow commit, where every answer is a noisy comparison with the last fast one known at the start.

Positions count commits: 0 is good, `last` is bad.  The comparison of both ends gives the size of the slowdown; a commit is slow if it
takes more than half of it (on the logarithm) longer than good.  Half is the best threshold: both errors then lie equally far away.

Errors.  A search takes `comparisons_of(last)` comparisons: both ends, ceil(log2(last)) steps, and the found commit against its
predecessor.  Each one gets an equal share of the search's error rate (Bonferroni), as the levels of its sequential test
(`stats.sequential`).  So the chance of any wrong side, among commits that have all of the slowdown or none, is at most the rate.  The last
comparison rests on its own data: no commit is named that is not slower than its predecessor by itself.

Histories need not be monotone.  Between a fast and a slow position there is a commit that made the kernel slower, whatever lies in between;
the search ends at one of them.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from ..schema import Confirmation, ConfirmationOutcome, Finding, VerdictKind
from .sequential import Plan

ERROR_RATE = 0.05
"""Chance that a search takes a wrong turn anywhere."""


class Side(StrEnum):
    """The side of the search that a commit belongs to."""

    FAST = "fast"
    SLOW = "slow"
    UNTESTABLE = "untestable"
    """Neither could be shown: it does not build, is wrong, or stayed undecided."""


def comparisons_of(last: int) -> int:
    """Comparisons of a search among `last` commits: both ends, each step, and the found commit against its predecessor."""
    return 2 + math.ceil(math.log2(last)) if last > 1 else 2


def plan_of_step(plan: Plan, last: int, rate: float = ERROR_RATE, *, size: float | None = None) -> Plan:
    """`plan` with the levels of one of the search's comparisons, none above the plan's own.

    Args:
        last: number of commits that can be the first slow one.
        size: head time over base time at the ends; half of it becomes the margin. None for the ends themselves and for the last comparison,
            which keep the plan's margin.

    Raises:
        ValueError: a size that is no slowdown.
    """
    level = rate / comparisons_of(last)
    levels = msgspec.structs.replace(plan, alarm_level=min(plan.alarm_level, level), pass_level=min(plan.pass_level, level))
    if size is None:
        return levels
    if not 1 < size < math.inf:
        raise ValueError(f"size={size!r}: expected bad's time over good's, above 1")
    # Without the floor: it keeps changes of less than a clock tick from being called, and the ends differ by more.
    return msgspec.structs.replace(levels, margin=math.sqrt(size) - 1, floor_us=0.0)


def side_of(finding: Finding, confirmation: Confirmation | None, smallest: float) -> Side:
    """The side of a commit from its comparison with good, at a margin of half the size.

    A comparison that ends between the sides is slow all the same if it shows any slowdown that matters: then a part of the whole is there
    already, and the search goes on to the commit that brought this part.

    Args:
        smallest: the slowdown that matters, as a share.
    """
    if finding.kind in (VerdictKind.PASS, VerdictKind.IMPROVEMENT):
        return Side.FAST
    if finding.kind is VerdictKind.UNDECIDED:
        return Side.SLOW if finding.next_look is None and finding.change.low > 1 + smallest else Side.UNTESTABLE
    if confirmation is None:
        return Side.UNTESTABLE
    if confirmation.outcome is ConfirmationOutcome.REFUTED:
        return Side.FAST
    slower = confirmation.outcome is ConfirmationOutcome.CONFIRMED or min(confirmation.estimates) > 1 + smallest
    return Side.SLOW if slower else Side.UNTESTABLE


def size_of(finding: Finding, confirmation: Confirmation) -> float:
    """Head time over base time: the middle of the first process's estimate and the fresh processes'."""
    estimates = sorted((finding.change.value, *confirmation.estimates))
    middle = len(estimates) // 2
    return math.sqrt(estimates[middle] * estimates[-1 - middle])


class Search:
    """The state of one search: `low` is fast, `high` is slow, and the first slow commit lies in low + 1 ... high."""

    def __init__(self, last: int) -> None:
        """`last`: the position of bad; good is 0."""
        if last < 1:
            raise ValueError(f"last={last!r}: expected at least one commit after good")
        self.low, self.high = 0, last
        self._untestable: set[int] = set()

    def next(self) -> int | None:
        """The testable position nearest the middle; None at the end."""
        middle = (self.low + self.high) // 2
        inside = (place for place in range(self.low + 1, self.high) if place not in self._untestable)
        return min(inside, key=lambda place: abs(place - middle), default=None)

    def note(self, place: int, side: Side) -> None:
        """Take in the answer for `place`.

        Raises:
            ValueError: `place` is not inside the search.
        """
        if not self.low < place < self.high:
            raise ValueError(f"position {place} does not lie between {self.low} and {self.high}")
        if side is Side.FAST:
            self.low = place
        elif side is Side.SLOW:
            self.high = place
        else:
            self._untestable.add(place)
