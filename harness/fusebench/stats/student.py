"""Student's t distribution for whole degrees of freedom, and the p-value of a Student interval.

It avoids scipy, whose import takes longer than a gate may.

With theta = atan(t / sqrt(n)), the probability inside [-t, t] is a finite sum of powers of cos(theta): Abramowitz & Stegun, Handbook of
Mathematical Functions, 26.7.3 for odd and 26.7.4 for even n.
"""

from __future__ import annotations

import functools
import math

from ..schema import Estimate

_HALVINGS = 200
"""Bisection steps that narrow any bracket to neighbouring floating-point numbers."""


def upper_tail(t: float, degrees: int) -> float:
    """P(T > t).  Below about 1e-15 it is 0: the sum is taken from 1.

    Raises:
        ValueError: fewer than one degree of freedom, or NaN.
    """
    if degrees < 1 or math.isnan(t):
        raise ValueError(f"t={t!r}, degrees={degrees!r}: expected a number and at least one degree of freedom")
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = max(0.0, 0.5 * (1.0 - _inside(abs(t), degrees)))
    return tail if t >= 0 else 1.0 - tail


@functools.cache
def quantile(p: float, degrees: int) -> float:
    """The t with P(T <= t) = p, by bisection.

    Raises:
        ValueError: a probability outside (0, 1), or fewer than one degree of freedom.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"p={p!r}: expected a probability between 0 and 1")
    if p < 0.5:
        return -quantile(1.0 - p, degrees)
    low, high = 0.0, 1.0
    while upper_tail(high, degrees) > 1.0 - p and high < 1e12:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if upper_tail(middle, degrees) > 1.0 - p else (low, middle)
    return 0.5 * (low + high)


def p_slower_of(change: Estimate, margin: float, degrees: int) -> float:
    """One-sided p-value of "no slower than the margin" behind a Student interval on the logarithm.

    For changes between two stored runs, which have an interval but no replicates to test.

    Args:
        change: time over reference time.
        margin: share of the reference time.
        degrees: degrees of freedom of the interval; for a quotient, the smaller of the two numbers, which is cautious.
    """
    if degrees < 1 or change.low <= 0.0:
        return 1.0  # an interval without bounds says nothing
    half = math.log(change.value / change.low)
    distance = math.log(change.value) - math.log1p(margin)
    if half <= 0.0:
        return 0.0 if distance > 0.0 else 1.0
    return upper_tail(distance / half * quantile(0.5 + change.level / 2, degrees), degrees)


def _inside(t: float, degrees: int) -> float:
    """P(-t <= T <= t)."""
    theta = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return (theta + sine * total) * 2.0 / math.pi if odd else sine * total
