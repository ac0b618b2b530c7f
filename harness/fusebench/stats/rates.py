"""Rates with exact intervals, and the size of an effect at which a rate crosses a share.

The interval is that of Clopper and Pearson (Biometrika 26 (1934) 404). Even 0 of 1000 has an upper bound above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec


class Rate(msgspec.Struct, frozen=True):
    """`count` of `total`, with the exact two-sided interval of the underlying rate."""

    count: int
    total: int
    low: float
    high: float
    level: float = 0.95

    @property
    def value(self) -> float:
        """The observed share; NaN for 0 of 0."""
        return self.count / self.total if self.total else math.nan

    def __str__(self) -> str:
        return f"{self.count} of {self.total} ({self.low:.2%} to {self.high:.2%})"


def rate(count: int, total: int, level: float = 0.95) -> Rate:
    """A rate with Clopper and Pearson's interval: 0 of 1000 is at most 0.37 % (0.30 % at a one-sided 95 %, which is a `level` of 0.9).

    Raises:
        ValueError: a count outside 0 to `total`, or a level outside (0, 1).
    """
    if not 0 <= count <= total or not 0 < level < 1:
        raise ValueError(f"{count} of {total} at level {level!r} is not a rate")
    # Imported here: scipy.special takes a third of a second.
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return Rate(count, total, low, high, level)


def visible_effect(found: Mapping[float, Rate], share: float = 0.95) -> float | None:
    """The slowdown at which the rate in `found` (by slowdown) crosses `share`; None if it never does, or already at the smallest.

    Observed rates are made monotone by pooling adjacent violators, because a larger slowdown cannot truly be found less often. Then they
    are interpolated linearly.
    """
    sizes = sorted(found)
    shares = _pooled([found[size] for size in sizes])
    for below, above, first, second in zip(sizes, sizes[1:], shares, shares[1:], strict=False):
        if first < share <= second:
            return below + (above - below) * (share - first) / (second - first)
    return None


def _pooled(rates: Sequence[Rate]) -> list[float]:
    """Shares made non-decreasing: neighbours in the wrong order are replaced by their common share."""
    blocks: list[tuple[int, int, int]] = []  # found, tried, sizes pooled
    for one in rates:
        block = (one.count, one.total, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    return [count / total if total else math.nan for count, total, sizes in blocks for _ in range(sizes)]
