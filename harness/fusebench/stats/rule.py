"""How a measured change becomes a verdict.  A rule sees the change and the time it stands on, and nothing else."""

from __future__ import annotations

from typing import Protocol

from ..schema import Estimate, VerdictKind

DEFAULT_MARGIN = 0.03
"""Changes within 3 % pass.  On an H200 the A/A log ratio scatters between placements with sd 0.35-0.56 % at 12 us and up to
1.2 % at 2.8 us; a quotient of two runs of 12 placements then has a 95 % interval of about 1 % at worst, so 3 % leaves
room for what differs between two runs (process, temperature, driver state) and is not averaged out by placements."""

DEFAULT_FLOOR_US = 0.1
"""Changes below 0.1 us pass whatever their share: about three ticks of CUPTI's 32 ns clock on the same GPU."""


class Rule(Protocol):
    """Anything that judges one change."""

    def judge(self, change: Estimate, time_us: float) -> tuple[VerdictKind, str]:
        """The verdict and its sentence.

        Args:
            change: new time over old, 1.02 being 2 % slower.
            time_us: the kernel's time in the new run, in microseconds, for limits that are absolute.
        """
        ...


class MarginRule:
    """Three-way: a verdict needs the whole interval on one side of the margin; what straddles it is undecided."""

    def __init__(self, margin: float = DEFAULT_MARGIN, floor_us: float = DEFAULT_FLOOR_US) -> None:
        """`margin` is a share of the old time (0.03 = 3 %); `floor_us` widens it for kernels so short that it is less than that.

        Raises:
            ValueError: a margin that is not positive, or a negative floor.
        """
        if not margin > 0 or not floor_us >= 0:
            raise ValueError(f"margin={margin!r}, floor_us={floor_us!r}: the margin must be positive and the floor not negative")
        self.margin = margin
        self.floor_us = floor_us

    def margin_at(self, time_us: float) -> float:
        """The margin in force for a kernel of `time_us` microseconds."""
        return max(self.margin, self.floor_us / time_us)

    def judge(self, change: Estimate, time_us: float) -> tuple[VerdictKind, str]:
        """Regression above 1 + margin, improvement below 1 / (1 + margin), pass inside, undecided across either limit."""
        margin = self.margin_at(time_us)
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


def describe_change(change: Estimate, digits: int = 1) -> str:
    """`+2.1% [+1.0%, +3.2%]` with `digits` decimals; an interval without bounds is named as such."""
    point = f"{change.value - 1:+.{digits}%}"
    if change.low <= 0.0 or change.high == float("inf"):
        return f"{point} [no interval: one replicate]"
    return f"{point} [{change.low - 1:+.{digits}%}, {change.high - 1:+.{digits}%}]"
