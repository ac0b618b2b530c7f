from __future__ import annotations

import math

import numpy as np
import pytest

from fusebench.stats.energy import best_split, energy_distances, rank_scores


def test_the_energy_distance_is_that_of_the_formula() -> None:
    values = [1.0, 2.5, 1.5, 4.0, 6.0, 5.5, 4.5]
    found = energy_distances(values, smallest=2)
    for split in range(2, 6):
        for end in range(split + 2, 8):
            left, right = values[:split], values[split:end]
            cross = np.mean([abs(a - b) for a in left for b in right])
            own = [np.mean([abs(a - b) for i, a in enumerate(part) for b in part[:i]]) for part in (left, right)]
            weight = len(left) * len(right) / (len(left) + len(right))
            assert found[split, end] == pytest.approx(weight * (2 * cross - own[0] - own[1]))
    assert found[1, 7] == found[6, 7] == found[5, 4] == -math.inf


def test_the_best_split_is_the_highest_of_all() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.05, 5.0, 5.1, 4.9, 5.2])
    energies = energy_distances(values, smallest=2)
    assert best_split(values, 2) == (energies.max(), 4)
    assert best_split(values, 5) == (-math.inf, 0), "too short for two parts of five"


def test_rank_scores_keep_order_and_forget_size() -> None:
    assert rank_scores([3.0, 1.0, 1000.0, 2.0]).tolist() == [0.5, 0.0, 0.75, 0.25]
    assert rank_scores([]).tolist() == []


def test_equal_values_get_distinct_ranks_in_an_order_that_is_no_trend() -> None:
    """Ranked in the order of time, a series without any change would be the plainest trend there is."""
    scores = rank_scores([1.0] * 40)
    assert sorted(scores.tolist()) == [place / 40 for place in range(40)]
    assert abs(np.corrcoef(scores, np.arange(40))[0, 1]) < 0.5
    assert rank_scores([1.0] * 40).tolist() == scores.tolist()
