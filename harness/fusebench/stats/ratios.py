"""The least ratio of two means that their standard errors allow."""

from __future__ import annotations

import math
from statistics import NormalDist


def least_ratio(ratio: float, error_above: float, error_below: float, level: float) -> float:
    """One-sided lower limit of a ratio of two independent, nearly normal means: E. C. Fieller, J. R. Statist. Soc. B 16 (1954) 175.

    It is the smaller root R of (above - R below)^2 = z^2 (var above + R^2 var below).  A logarithm's standard error would not do: where one
    observation makes all of a mean, the mean is as large as its standard error, and Fieller's limit is 0 however large the ratio is.

    Args:
        ratio: of the two means, both positive.
        error_above, error_below: standard error of each mean, as a share of it.
        level: the probability that the true ratio is below the limit.

    Returns:
        The limit; 0 where the numerator may be 0 at this level.

    Raises:
        ValueError: a negative standard error, or a level outside (0, 0.5).
    """
    if min(error_above, error_below) < 0 or not 0 < level < 0.5:
        raise ValueError(f"standard errors {error_above!r} and {error_below!r}, level {level!r}: expected none below 0, and (0, 0.5)")
    z = -NormalDist().inv_cdf(level)
    above, below = (z * error_above) ** 2, (z * error_below) ** 2
    if above >= 1.0:
        return 0.0
    return ratio * (1.0 - above) / (1.0 + math.sqrt(above + below - above * below))
