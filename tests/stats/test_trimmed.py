from __future__ import annotations

import math

import pytest

from fusebench.stats.paired import InvalidSamplesError, trimmed_mean


def test_an_interrupted_launch_does_not_move_the_mean() -> None:
    steady = [14.0, 14.1, 13.9, 14.0, 14.2, 13.8, 14.0, 14.1, 13.9, 14.0]
    assert trimmed_mean([*steady[:-1], 500.0], 0.1) == pytest.approx(14.0, abs=0.05)
    assert trimmed_mean([*steady[:-1], 500.0], 0.0) > 60


def test_resolves_below_the_timers_tick() -> None:
    assert trimmed_mean([14.016] * 50 + [14.048] * 50, 0.1) == pytest.approx(14.032)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2, 2), (9, 9), (10, 8), (25, 21)])
def test_cuts_the_floor_of_the_share_from_each_end(count: int, kept: int) -> None:
    values = [1.0 + index for index in range(count)]
    low = (count - kept) // 2
    assert trimmed_mean(values[::-1], 0.1) == pytest.approx(sum(values[low : low + kept]) / kept)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, 0.0], [-1.0], [math.inf]])
def test_refuses_what_cannot_be_a_duration(values: list[float]) -> None:
    with pytest.raises(InvalidSamplesError):
        trimmed_mean(values, 0.1)


@pytest.mark.parametrize("trim", [-0.1, 0.5, math.nan])
def test_refuses_a_trim_that_leaves_nothing(trim: float) -> None:
    with pytest.raises(ValueError, match="trim"):
        trimmed_mean([1.0], trim)
