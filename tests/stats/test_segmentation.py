"""Thousands of series at once: the place of a step, boards as random effects, gaps, and p-values that hold what they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fusebench.stats.changepoint import Cut, levels
from fusebench.stats.largest_score import p_values_of
from fusebench.stats.segmentation import Level, board_ratio, divide_all

NIGHTS = 300
ONE_BOARD = np.zeros(NIGHTS, dtype=np.int64)


def nights(series: int, seed: int = 0, runs: int = NIGHTS) -> NDArray[np.float64]:
    """Logarithms of times that scatter by 0.5 %, one night in thirty disturbed."""
    random = np.random.default_rng(seed)
    logs = random.standard_t(5, (series, runs)) * 0.005 / np.sqrt(5 / 3)
    return logs + np.where(random.random((series, runs)) < 1 / 30, 0.05, 0.0)


def places(logs: NDArray[np.float64], cuts: Sequence[Cut]) -> list[int]:
    """Where levels differ by more than 1 %."""
    return [one.index for one in levels(np.exp(logs[np.isfinite(logs)]).tolist(), cuts, 0.01)]


def test_a_step_is_found_where_it_is_and_a_second_one_too() -> None:
    logs = nights(40)
    logs[:10, 150:] += 0.03
    logs[:5, 250:] -= 0.02
    cuts, p_values = divide_all(np.exp(logs), ONE_BOARD, Level(0.05))
    assert (p_values[:10] < 1e-6).all()
    found = [places(row, one) for row, one in zip(logs, cuts, strict=True)]
    assert [len(one) for one in found[:10]] == [2] * 5 + [1] * 5
    assert all(abs(one[0] - 150) <= 2 for one in found[:10])
    assert all(abs(one[1] - 250) <= 2 for one in found[:5])
    assert not any(found[10:])
    assert all(abs(one[0].index - 150) <= 2 for one in cuts[:10]), "the most significant division comes first"


def test_gaps_move_no_change_point() -> None:
    """Places count the runs that hold the series, as those of `changepoint.divide`."""
    logs = nights(6, seed=3)
    logs[:, 200:] += 0.04
    random = np.random.default_rng(1)
    logs[random.random(logs.shape) < 0.2] = np.nan
    logs[5, :100] = np.nan  # a kernel that came later
    cuts, _ = divide_all(np.exp(logs), ONE_BOARD, Level(0.05))
    for row, one in zip(logs, cuts, strict=True):
        (place,) = places(row, one)
        assert abs(place - np.isfinite(row[:200]).sum()) <= 2


def test_too_few_runs_are_not_divided() -> None:
    cuts, p_values = divide_all(np.exp(np.concatenate([nights(2, runs=5), nights(2, runs=4) + 1.0], axis=1)), ONE_BOARD[:9], Level(0.05))
    assert cuts == [[], []]
    assert list(p_values) == [1.0, 1.0]


def test_boards_that_replace_each_other_are_a_random_effect_and_those_that_take_turns_cost_nothing() -> None:
    random = np.random.default_rng(5)
    effects = random.normal(0, 0.01, (60, 6))
    turns, blocks = random.integers(0, 6, NIGHTS), np.repeat(np.arange(6), NIGHTS // 6)
    replaced = nights(60, seed=6) + effects[:, blocks]
    assert board_ratio(replaced, blocks) > 2
    assert board_ratio(nights(60), turns) < 0.2
    cuts, _ = divide_all(np.exp(replaced), blocks, Level(0.05))
    blind, _ = divide_all(np.exp(replaced), ONE_BOARD, Level(0.05))
    assert sum(map(bool, blind)) > 50, "without boards in the model nearly every series would seem to move"
    assert sum(map(bool, cuts)) <= 6
    moved = nights(60, seed=7) + effects[:, turns]
    moved[:, 150:] += 0.03
    found, _ = divide_all(np.exp(moved), turns, Level(0.05))
    assert all(any(abs(cut.index - 150) <= 10 for cut in one) for one in found), "a change on every board is no board's"


def test_a_coarse_clock_that_gives_equal_times_divides_nothing() -> None:
    cuts, _ = divide_all(np.full((3, NIGHTS), 12.0), ONE_BOARD, Level(0.05))
    assert cuts == [[], [], []]


@pytest.mark.parametrize("runs", [60, 300])
def test_p_values_of_series_without_change_hold_what_they_say(runs: int) -> None:
    _, p_values = divide_all(np.exp(nights(1500, seed=runs, runs=runs)), ONE_BOARD[:runs], Level(0.05))
    for level in (0.01, 0.05, 0.2):
        assert (p_values <= level).mean() <= level + 2 * np.sqrt(level / len(p_values))
    none, small, middle, large = p_values_of(np.array([0.0, 4.0, 5.0, 9.0]), 300)
    assert none == 1 > small > middle > large > 0


def test_the_level_is_benjamini_and_hochbergs() -> None:
    assert Level(0.05)(np.array([0.001, 0.02, 0.03, 0.9])) == pytest.approx(0.05 * 3 / 4)
    assert Level(0.05)(np.array([0.9, 0.9])) == pytest.approx(0.05 / 2)


@pytest.mark.parametrize(
    "boards", [ONE_BOARD, np.random.default_rng(2).integers(0, 4, NIGHTS), np.arange(NIGHTS) // 15], ids=["1", "4", "20"]
)
def test_parts_of_one_series_alone_are_divided_as_those_that_series_share(boards: NDArray[np.int64]) -> None:
    """Parts of single series are computed end to end, parts that two have in common as a matrix."""
    random = np.random.default_rng(9)
    logs = nights(12, seed=8) + random.normal(0, 0.004, (12, 20))[:, boards]
    for row, cut in enumerate(random.integers(60, 240, 12)):
        logs[row, cut:] += 0.02
        logs[row, cut + 30 :] -= 0.015
    logs[5] = nights(1, seed=4)[0]
    logs[5, -7:] += 0.1  # the part after it is too short to be divided
    logs[3, random.random(NIGHTS) < 0.1] = np.nan
    alone, _ = divide_all(np.exp(logs), boards, lambda _: 0.01)
    twice, _ = divide_all(np.exp(np.concatenate([logs, logs])), boards, lambda _: 0.01)
    assert sum(map(len, alone)) > 15
    for one, other in zip(alone + alone, twice, strict=True):
        assert [cut.index for cut in one] == [cut.index for cut in other]
        assert [cut.p_value for cut in one] == pytest.approx([cut.p_value for cut in other])
