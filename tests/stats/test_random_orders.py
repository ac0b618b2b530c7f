from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from fusebench.stats.energy import best_split, rank_scores
from fusebench.stats.random_orders import ENOUGH, RandomOrders


def by_shuffling(parts: list[np.ndarray], statistic: float, smallest: int, orders: int) -> int:
    """The textbook test: shuffle the very values of each part, count the orders that score as high."""
    generator = np.random.default_rng(99)
    return sum(max(best_split(generator.permutation(part), smallest)[0] for part in parts) >= statistic for _ in range(orders))


@pytest.mark.parametrize("lengths", [(30,), (22, 13), (15, 15)], ids=str)
def test_one_list_of_orders_per_length_says_what_shuffling_each_series_says(lengths: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    parts = [rank_scores(generator.normal(size=length)) for length in lengths]
    for statistic in (0.6, 1.0, 1.6):
        found = RandomOrders(3999)(parts, statistic, 5)
        low, high = binom.ppf([1e-4, 1 - 1e-4], 400, found)
        slack = 1 + 4 / ENOUGH**0.5  # what stopping after `ENOUGH` leaves open
        assert low / slack <= by_shuffling(parts, statistic, 5, 400) <= high * slack


def test_p_values_of_series_without_change_are_uniform_or_larger() -> None:
    test = RandomOrders(1999)
    generator = np.random.default_rng(4)
    parts = [[rank_scores(generator.standard_cauchy(24))] for _ in range(400)]
    p_values = np.array([test(part, best_split(part[0], 5)[0], 5) for part in parts])
    for level in (0.02, 0.1, 0.5):
        assert (p_values <= level).sum() <= binom.ppf(0.9999, 400, level)
    assert (p_values <= 0.5).sum() >= binom.ppf(0.0001, 400, 0.5) * 0.8, "and not always large either"


def test_the_answer_does_not_depend_on_what_was_asked_before() -> None:
    part = rank_scores(np.random.default_rng(5).normal(size=30))
    fresh, used = RandomOrders(999), RandomOrders(999)
    for statistic in (0.2, 2.5, 0.7):
        used([part, part[:20]], statistic, 5)
    assert used([part], 1.2, 5) == fresh([part], 1.2, 5)


def test_a_score_beyond_all_orders_has_the_least_p_value_and_a_common_one_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(
        "fusebench.stats.random_orders.best_split", lambda values, smallest: drawn.append(1) or best_split(values, smallest)
    )
    part = rank_scores(np.arange(20.0))
    assert RandomOrders(499)([part], -1.0, 5) == pytest.approx(1.0)
    assert len(drawn) <= 256, "the first look is enough for a score that every order reaches"
    drawn.clear()
    assert RandomOrders(499)([part], 1e6, 5) == 1 / 500
    assert len(drawn) == 499


def test_two_parts_of_one_length_have_orders_of_their_own() -> None:
    """With shared ones the better of two would be as likely as the better of one."""
    part = rank_scores(np.arange(20.0))
    test = RandomOrders(1999)
    one, two = (test([part] * copies, 0.75, 5) for copies in (1, 2))
    assert two > 1.3 * one
