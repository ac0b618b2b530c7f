"""The rule that turns a measured change into a verdict, from the change, the kernel's time and its launches alone."""

from __future__ import annotations

from typing import Protocol

from ..schema import Estimate, VerdictKind
from ..stats.paired import describe_change

DEFAULT_MARGIN = 0.02
"""Changes within 2 % pass.  Between three nightlies of 12 placements on three H200s, 95 % intervals of unchanged kernels of one launch were
+-0.9 % from 3 us, +-0.6 % from 10 and +-0.25 % from 50 us (medians): 82 % of 336 comparisons, 99 % of 372 and all of 317 lay within 2 %,
and two beyond."""

DEFAULT_FLOOR_US = 0.1
"""Changes below 0.1 us pass at any share: this is about three ticks of CUPTI's 32 ns clock on the same GPU."""

SEVERAL_LAUNCHES = 2.0
"""Margin and floor of calls of several launches are this many times as wide: the time between launches scatters with the host and the
driver.  Of 836 comparisons of such calls, unchanged, between the same nightlies, 2 % and 0.1 us would have called 53 faster or slower, the
double 9."""


class Rule(Protocol):
    """A rule that judges one change."""

    def judge(self, change: Estimate, time_us: float, launches: int = 1) -> tuple[VerdictKind, str]:
        """The verdict and its sentence.

        Args:
            change: new time over old, 1.02 being 2 % slower.
            time_us: the kernel's time in the new run, in microseconds, for limits that are absolute.
            launches: launches of one call, the fewer of both runs; 0 if the timer sees none.
        """
        ...


class MarginRule:
    """Three outcomes: a change needs the whole interval beyond the margin, a pass needs it inside; an interval across it is undecided."""

    def __init__(self, margin: float = DEFAULT_MARGIN, floor_us: float = DEFAULT_FLOOR_US) -> None:
        """`margin` is a share of the old time (0.03 = 3 %); `floor_us` widens it for kernels so short that it is less than that.  Both are
        those of calls of one launch.

        Raises:
            ValueError: a margin that is not positive, or a negative floor.
        """
        if not margin > 0 or not floor_us >= 0:
            raise ValueError(f"margin={margin!r}, floor_us={floor_us!r}: the margin must be positive and the floor not negative")
        self.margin = margin
        self.floor_us = floor_us

    def margin_at(self, time_us: float, launches: int = 1) -> float:
        """The margin in force for a call of `time_us` microseconds and so many launches."""
        return max(self.margin, self.floor_us / time_us) * (SEVERAL_LAUNCHES if launches > 1 else 1.0)

    def judge(self, change: Estimate, time_us: float, launches: int = 1) -> tuple[VerdictKind, str]:
        """Regression above 1 + margin, improvement below 1 / (1 + margin), pass inside, undecided across either limit."""
        margin = self.margin_at(time_us, launches)
        slow, fast = 1.0 + margin, 1.0 / (1.0 + margin)
        seen = describe_change(change)
        within = f"{margin:.1%} margin"
        if change.low > slow:
            return VerdictKind.REGRESSION, f"{seen}: slower beyond the {within}"
        if change.high < fast:
            return VerdictKind.IMPROVEMENT, f"{seen}: faster beyond the {within}"
        if fast <= change.low and change.high <= slow:
            return VerdictKind.PASS, f"{seen}: inside the {within}"
        return VerdictKind.UNDECIDED, f"{seen}: the interval crosses the {within}; measure with more replicates"
