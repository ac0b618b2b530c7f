from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as reference

from fusebench.stats.signed_rank import bounds, center, p_above, p_below, walsh_averages


@pytest.mark.parametrize("count", [1, 5, 12, 40])
def test_p_values_are_the_exact_ones_of_wilcoxon(count: int) -> None:
    values = np.random.default_rng(count).normal(0.2, 1.0, count)
    walsh = walsh_averages(values)
    for limit in (-0.5, 0.0, 0.3):
        above = reference.wilcoxon(values - limit, alternative="greater", method="exact").pvalue
        below = reference.wilcoxon(values - limit, alternative="less", method="exact").pvalue
        assert p_above(walsh, count, limit) == pytest.approx(above)
        assert p_below(walsh, count, limit) == pytest.approx(below)


def test_the_interval_is_the_test_inverted() -> None:
    generator = np.random.default_rng(1)
    for count in (8, 12, 30):
        walsh = walsh_averages(generator.normal(size=count))
        low, high = bounds(walsh, count, 0.01)
        assert p_above(walsh, count, math.nextafter(low, -math.inf)) <= 0.01 < p_above(walsh, count, low)
        assert p_below(walsh, count, math.nextafter(high, math.inf)) <= 0.01 < p_below(walsh, count, high)


def test_too_few_values_claim_no_interval() -> None:
    walsh = walsh_averages([0.1, 0.2, 0.3])
    assert bounds(walsh, 3, 0.1) == (-math.inf, math.inf)
    assert bounds(walsh, 3, 0.125) == (0.1, 0.3)


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "two points"])
def test_the_interval_misses_no_more_than_it_says_under_any_symmetric_distribution(draw: str) -> None:
    generator = np.random.default_rng(2)
    missed_low = missed_high = 0
    for _ in range(2000):
        # The scatter changes from value to value as well: only the signs must be independent.
        scale = np.exp(generator.normal(size=14))
        shape = generator.choice([-1.0, 1.0], 14) if draw == "two points" else getattr(generator, draw)(size=14)
        low, high = bounds(walsh_averages(3.0 + scale * shape), 14, 0.025)
        missed_low += low > 3.0
        missed_high += high < 3.0
    most = reference.binom.ppf(0.999, 2000, 0.025)
    assert max(missed_low, missed_high) <= most
    assert min(missed_low, missed_high) >= reference.binom.ppf(0.001, 2000, 0.015), "exact, not merely cautious"


def test_ties_with_the_limit_make_the_test_more_cautious() -> None:
    tied = walsh_averages([0.0, 0.0, 1.0, 1.0, 1.0])
    assert p_above(tied, 5, 0.0) > p_above(walsh_averages([0.01, 0.01, 1.0, 1.0, 1.0]), 5, 0.0)
    assert p_above(walsh_averages([0.0] * 12), 12, 0.0) == p_below(walsh_averages([0.0] * 12), 12, 0.0) == 1.0


def test_the_center_ignores_a_wild_value() -> None:
    assert center(walsh_averages([1.0, 1.1, 0.9, 1.05, 0.95, 50.0])) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_refuses_what_has_no_ranks(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, all finite"):
        walsh_averages(values)
