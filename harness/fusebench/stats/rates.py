"""Rates with exact intervals, also of clustered trials, and the size of an effect at which a rate crosses a share.

The interval is that of Clopper and Pearson (Biometrika 26 (1934) 404). Even 0 of 1000 has an upper bound above 0.

Trials of one cluster resemble each other. So their interval is that of fewer, independent trials: Kish's design effect (Survey Sampling,
1965) with the intraclass correlation from an analysis of variance (Ridout, Demetrio and Firth, Biometrics 55 (1999) 137), and the
correction of Korn and Graubard (Survey Methodology 24 (1998) 193) for the number of clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .student import quantile


class Rate(msgspec.Struct, frozen=True):
    """`count` of `total`, with the exact two-sided interval of the underlying rate."""

    count: int
    total: int
    low: float
    high: float
    level: float = 0.95
    clusters: int | None = None
    """Clusters of the trials; None where every trial is independent of the others."""
    effective: float | None = None
    """The number of independent trials with the same interval; None where that is `total`."""

    @property
    def value(self) -> float:
        """The observed share; NaN for 0 of 0."""
        return self.count / self.total if self.total else math.nan

    def __str__(self) -> str:
        return f"{self.count} of {self.total} ({100 * self.low:.2f} % to {100 * self.high:.2f} %)"


def rate(count: int, total: int, level: float = 0.95) -> Rate:
    """A rate with Clopper and Pearson's interval: 0 of 1000 is at most 0.37 % (0.30 % at a one-sided 95 %, which is a `level` of 0.9).

    Raises:
        ValueError: a count outside 0 to `total`, or a level outside (0, 1).
    """
    if not 0 <= count <= total or not 0 < level < 1:
        raise ValueError(f"{count} of {total} at level {level!r} is not a rate")
    low, high = _exact(count, total, level)
    return Rate(count, total, low, high, level)


def _exact(count: float, total: float, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval, which exists for counts that are not whole, too."""
    # Imported here: scipy.special takes a third of a second.
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return low, high


Cluster = tuple[int, int]
"""Trials of a cluster that came out, and all its trials."""


def clustered_rate(clusters: Sequence[Cluster], correlation: float, level: float = 0.95) -> Rate:
    """The rate over all clusters, with the interval of as many independent trials as the clusters are worth.

    Args:
        clusters: at least one trial each.
        correlation: between trials of one cluster, as `intraclass_correlation` estimates it: 0 for none, 1 where they are all alike.

    Raises:
        ValueError: a count outside 0 to the cluster's trials, a cluster without trials, or a correlation outside [0, 1].
    """
    if not all(0 <= count <= total and total > 0 for count, total in clusters) or not 0 <= correlation <= 1:
        raise ValueError(f"{clusters!r} with a correlation of {correlation!r} are no clusters of trials")
    count, total = (sum(one[place] for one in clusters) for place in (0, 1))
    if total == len(clusters):
        return rate(count, total, level)
    effective = total / (1 + correlation * (sum(each * each for _, each in clusters) / total - 1))
    if len(clusters) > 1:
        effective *= (quantile(0.5 + level / 2, total - 1) / quantile(0.5 + level / 2, len(clusters) - 1)) ** 2
    else:
        effective = min(effective, 1.0)  # one cluster does not tell how far others would differ
    low, high = _exact(count / total * effective, effective, level)
    return Rate(count, total, low, high, level, clusters=len(clusters), effective=effective)


def intraclass_correlation(strata: Iterable[Sequence[Cluster]]) -> float:
    """The correlation between trials of one cluster, from 0 to 1: an analysis of variance, pooled over strata with rates of their own.

    0 where no stratum tells: all of its trials came out alike, or none of its clusters holds two trials.
    """
    between = within = 0.0
    between_degrees, within_degrees, sizes = 0, 0, 0.0
    for stratum in strata:
        total = sum(each for _, each in stratum)
        if len(stratum) < 2 or total == len(stratum):
            continue
        share = sum(count for count, _ in stratum) / total
        between += sum(each * (count / each - share) ** 2 for count, each in stratum)
        within += sum(count * (1 - count / each) for count, each in stratum)
        degrees = len(stratum) - 1
        sizes += total - sum(each * each for _, each in stratum) / total
        between_degrees, within_degrees = between_degrees + degrees, within_degrees + total - len(stratum)
    if not between_degrees or not within_degrees or not between + within > 0:
        return 0.0
    usual, mean_between, mean_within = sizes / between_degrees, between / between_degrees, within / within_degrees
    return min(1.0, max(0.0, (mean_between - mean_within) / (mean_between + (usual - 1) * mean_within)))


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
