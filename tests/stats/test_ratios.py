"""The least ratio of two means: the root of an equation, below the true ratio as rarely as it says, and 0 where one outlier is all."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from fusebench.stats.ratios import least_ratio


@pytest.mark.parametrize(("above", "below"), [(0.01, 0.02), (0.1, 0.05), (0.05, 0.2), (0.0, 0.1), (0.1, 0.0), (0.15, 0.6)])
def test_it_is_the_smaller_root_of_fiellers_equation(above: float, below: float) -> None:
    ratio, level, z = 1.7, 1e-6, -NormalDist().inv_cdf(1e-6)
    least = least_ratio(ratio, above, below, level)
    assert 0 < least < ratio
    assert (ratio - least) ** 2 == pytest.approx(z**2 * ((ratio * above) ** 2 + (least * below) ** 2))


def test_exact_means_have_their_ratio_and_a_numerator_that_may_be_zero_has_none() -> None:
    assert least_ratio(3.0, 0.0, 0.0, 0.01) == 3.0
    assert least_ratio(1e6, 0.5, 0.01, 1e-6) == 0.0


def test_small_errors_give_the_limit_of_the_logarithm() -> None:
    z = -NormalDist().inv_cdf(1e-3)
    assert math.log(least_ratio(2.0, 1e-3, 2e-3, 1e-3) / 2.0) == pytest.approx(-z * math.hypot(1e-3, 2e-3), rel=0.01)


def test_the_true_ratio_is_below_the_limit_as_often_as_the_level_says() -> None:
    draws, level, tries = random.Random(3), 0.05, 20_000
    below = 0
    for _ in range(tries):
        top, bottom = draws.gauss(2.0, 0.2), draws.gauss(1.0, 0.08)
        below += least_ratio(top / bottom, 0.2 / top, 0.08 / bottom, level) > 2.0
    assert below / tries == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / tries))


@pytest.mark.parametrize("wrong", [(-0.1, 0.1, 0.01), (0.1, -0.1, 0.01), (0.1, 0.1, 0.0), (0.1, 0.1, 0.5)])
def test_impossible_errors_and_levels_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="expected none below 0"):
        least_ratio(1.0, *wrong)
