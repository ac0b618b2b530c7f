"""Rates of clustered trials: the interval holds its level where trials of one case resemble each other."""

from __future__ import annotations

import numpy as np
import pytest

from fusebench.stats.rates import Cluster, clustered_rate, intraclass_correlation, rate

OTHER_SIZES = (0.3, 0.7, 0.9)
"""Shares of other sizes, which tell the correlation where everything of the size in question was found."""


def drawn(generator: np.random.Generator, share: float, correlation: float, clusters: int, size: int) -> list[Cluster]:
    """Clusters whose own shares are beta-distributed, so that two trials of one cluster correlate."""
    shares = np.full(clusters, share)
    if correlation > 0:
        scale = (1 - correlation) / correlation
        shares = generator.beta(share * scale, (1 - share) * scale, clusters)
    return [(int(found), size) for found in generator.binomial(size, shares)]


def coverage(share: float, correlation: float, clusters: int, size: int, times: int) -> tuple[float, float, float]:
    """How often the interval holds the share; how often the lower limit of 95 % does, and that of trials taken for independent."""
    generator = np.random.default_rng(19)
    held = lower = naive = 0
    for _ in range(times):
        strata = [drawn(generator, one, correlation, clusters, size) for one in (share, *OTHER_SIZES)]
        found = intraclass_correlation(strata)
        two_sided, one_sided = (clustered_rate(strata[0], found, level) for level in (0.95, 0.90))
        held += two_sided.low <= share <= two_sided.high
        lower += one_sided.low <= share
        naive += rate(one_sided.count, one_sided.total, 0.90).low <= share
    return held / times, lower / times, naive / times


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_lower_limit_holds_where_clusters_differ_and_that_of_independent_trials_does_not(correlation: float) -> None:
    held, lower, naive = coverage(0.95, correlation, 20, 6, 150)
    assert held > 0.92
    assert lower > 0.92
    assert (naive < 0.90) == (correlation > 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("clusters", [6, 20, 60])
@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.99])
def test_intervals_of_clustered_rates_hold_their_level(share: float, size: int, clusters: int, correlation: float) -> None:
    held, lower, _ = coverage(share, correlation, clusters, size, 600)
    assert held > 0.95 - 0.025, "three standard errors of 600 draws"
    assert lower > 0.95 - 0.03


def test_independent_trials_have_the_exact_interval_and_equal_ones_count_once() -> None:
    single = clustered_rate([(1, 1)] * 19 + [(0, 1)], 0.7)
    assert single == rate(19, 20)
    alike = clustered_rate([(6, 6)] * 60, 1.0)
    assert alike.effective == pytest.approx(60, rel=0.04)
    assert alike.low == pytest.approx(rate(60, 60).low, abs=0.003)
    lone = clustered_rate([(50, 50)], 0.0)
    assert (lone.effective, lone.low < 0.1) == (1.0, True)
    with pytest.raises(ValueError, match="no clusters"):
        clustered_rate([(2, 1)], 0.0)


def test_the_correlation_is_that_of_the_draws() -> None:
    generator = np.random.default_rng(1)
    for correlation in (0.0, 0.3, 0.8):
        strata = [drawn(generator, share, correlation, 400, 5) for share in (0.5, 0.8)]
        assert intraclass_correlation(strata) == pytest.approx(correlation, abs=0.06)
    assert intraclass_correlation([[(5, 5)] * 10]) == 0.0
    assert intraclass_correlation([[(0, 1), (1, 1)]]) == 0.0
    assert intraclass_correlation([[(0, 4), (4, 4)] * 3]) == 1.0
