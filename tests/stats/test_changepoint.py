from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binom

from fusebench.stats.changepoint import Cut, change_points, divide, least_p_value, levels
from fusebench.stats.random_orders import RandomOrders

QUICK = RandomOrders(199)


def history(
    count: int, steps: Sequence[tuple[int, float]] = (), *, scatter: float = 0.004, tail: float = 5.0, drift: float = 0.0, seed: int = 0
) -> np.ndarray:
    """Nightly times of a 26 us kernel: heavy-tailed scatter, one night in thirty disturbed, and a 32 ns tick.  A step multiplies what
    follows it."""
    generator = np.random.default_rng(seed)
    logs = scatter * generator.standard_t(tail, count) + drift * np.arange(count) / count
    logs += (generator.random(count) < 1 / 30) * generator.exponential(0.05, count)
    for place, factor in steps:
        logs[place:] += math.log(factor)
    return np.round(26.0 * np.exp(logs) / 0.032) * 0.032


@pytest.mark.parametrize("factor", [1.02, 1 / 1.03])
def test_a_planted_step_is_found_where_it_is(factor: float) -> None:
    (point,) = change_points(history(90, [(60, factor)], seed=1).tolist(), QUICK)
    assert abs(point.index - 60) <= 2
    assert point.change == pytest.approx(factor, rel=0.004)
    assert point.p_value <= 0.01


def test_several_steps_and_a_bump_that_returns_are_found() -> None:
    found = change_points(history(150, [(50, 1.03), (80, 1 / 1.03), (120, 0.98)], seed=2).tolist(), QUICK)
    assert len(found) == 3
    assert [abs(point.index - place) <= 2 for point, place in zip(found, (50, 80, 120), strict=True)] == [True] * 3


def test_single_outliers_are_no_change() -> None:
    for seed in range(20):
        series = history(60, seed=100 + seed, tail=50.0)
        series[[20, 45]] *= 1.5
        assert change_points(series.tolist(), QUICK) == []


def test_a_steady_series_rarely_has_a_change_point() -> None:
    test = RandomOrders(1999)
    alarms = sum(bool(change_points(history(40, seed=1000 + seed).tolist(), test, level=0.05)) for seed in range(200))
    assert alarms <= binom.ppf(0.999, 200, 0.05)


def test_a_test_that_believes_everything_finds_changes_everywhere() -> None:
    """The planted defect that the one before must be able to see."""
    alarms = sum(bool(change_points(history(40, seed=seed).tolist(), lambda _parts, _best, _smallest: 0.0)) for seed in range(20))
    assert alarms == 20


def test_slow_drift_is_reported_as_its_size_deserves() -> None:
    """A drift is a change of level and no step: as a whole it is found, cut somewhere in its middle, and one below the size asked for
    is left out."""
    strong = change_points(history(90, drift=0.03, seed=3).tolist(), QUICK, smallest_change=0.01)
    assert strong
    assert strong[-1].after / strong[0].before > 1.01
    assert change_points(history(90, drift=0.006, seed=3).tolist(), QUICK, smallest_change=0.01) == []


def test_small_changes_are_merged_and_large_ones_kept() -> None:
    series = history(120, [(40, 1.004), (80, 1.05)], scatter=0.0005, seed=4).tolist()
    assert [round(point.index, -1) for point in change_points(series, QUICK)] == [40, 80]
    (large,) = change_points(series, QUICK, smallest_change=0.01)
    assert abs(large.index - 80) <= 1


def test_the_significance_test_is_the_callers() -> None:
    seen = []

    def refuse(parts: Sequence[np.ndarray], statistic: float, smallest: int) -> float:
        seen.append((len(parts), statistic > 0, smallest))
        return 1.0

    assert change_points(history(60, [(30, 1.2)]).tolist(), refuse, smallest_part=7) == []
    assert seen == [(1, True, 7)]


def test_short_and_constant_series_have_none() -> None:
    assert change_points([], QUICK) == []
    assert change_points([1.0] * 9, QUICK) == []
    assert change_points([1.0] * 40, QUICK) == []


def test_the_place_of_a_step_is_where_two_levels_explain_the_values_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plainest division of ranks alone is more often a run or two away."""

    def exact() -> int:
        found = [divide(history(90, [(60, 1.03)], seed=seed).tolist(), QUICK, most=1) for seed in range(150)]
        return sum(cut.index == 60 for (cut,) in found)

    placed = exact()
    monkeypatch.setattr("fusebench.stats.changepoint.placed", lambda _logs, cuts, _smallest: list(cuts))
    assert placed > exact() > 75


def test_every_level_keeps_its_least_length() -> None:
    series = [1.0] * 5 + [1.1] * 3 + [1.2] * 7
    assert all(5 <= cut.index <= 10 for cut in divide(series, lambda _parts, _best, _smallest: 0.0, smallest_part=5))


def test_divisions_are_ordered_by_plainness_and_can_be_cut_short() -> None:
    series = history(120, [(40, 1.05), (80, 1.01)], scatter=0.002, seed=7).tolist()
    both = divide(series, QUICK)
    assert [abs(cut.index - place) <= 2 for cut, place in zip(both, (40, 80), strict=True)] == [True, True]
    assert len(divide(series, QUICK, most=1)) == 1
    assert divide(series, QUICK, most=0) == []


def test_a_change_of_nothing_is_none() -> None:
    assert levels([1.0, 2.0] * 20, [Cut(20, 0.001)]) == []


@pytest.mark.parametrize(("count", "expected"), [(9, 1.0), (10, 2 / 252), (11, 4 / 462), (40, 2 / math.comb(40, 20))])
def test_no_series_can_have_a_smaller_p_value_than_the_least(count: int, expected: float) -> None:
    assert least_p_value(count) == pytest.approx(expected)
    apart = [1.0 + 0.001 * place for place in range(count // 2)] + [2.0 + 0.001 * place for place in range(count - count // 2)]
    found = divide(apart, RandomOrders(4999), level=1.0, most=1)
    assert all(cut.p_value >= expected * 0.6 for cut in found), "beyond what drawing 4999 orders leaves open"


def test_the_answer_is_reproducible() -> None:
    series = history(60, [(30, 1.01)], seed=6).tolist()
    assert change_points(series, RandomOrders(99, seed=1)) == change_points(series, RandomOrders(99, seed=1))


def test_refuses_series_without_a_logarithm() -> None:
    with pytest.raises(ValueError, match="value 1 of 2 is 0"):
        change_points([1.0, 0.0])
    with pytest.raises(ValueError, match="at least two values"):
        change_points([1.0], smallest_part=1)
    with pytest.raises(ValueError, match="at least one"):
        RandomOrders(0)
