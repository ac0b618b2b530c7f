"""Warm-up ends when the clock stands still, and says so when it never does."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fusebench.device import wait_for_steady_clock


class Gpu:
    """A clock that follows `mhz_at(seconds of work)`; each unit of work takes `step` seconds."""

    def __init__(self, mhz_at: Callable[[float], int | None], step: float = 0.02) -> None:
        self.mhz_at = mhz_at
        self.step = step
        self.now = 0.0

    def work(self) -> None:
        self.now += self.step

    def warm_up(self, **limits):
        return wait_for_steady_clock(lambda: self.mhz_at(self.now), self.work, clock=lambda: self.now, **limits)


def test_a_rising_clock_is_waited_for() -> None:
    seen = Gpu(lambda t: min(1980, 345 + int(t * 1000))).warm_up()
    assert seen.steady
    assert (seen.lowest_mhz, seen.end_mhz) == (365, 1980)
    assert seen.seconds > (1980 - 345) / 1000
    assert seen.reason == ""


def test_the_idle_clock_before_the_driver_noticed_is_not_taken_for_steady() -> None:
    seen = Gpu(lambda t: 345 if t < 0.4 else 1980).warm_up()
    assert seen.steady
    assert seen.end_mhz == 1980


def test_the_highest_clock_from_the_first_reading_on_needs_no_more_than_a_refresh_or_two() -> None:
    seen = Gpu(lambda _: 1980).warm_up(top_mhz=1980)
    assert seen.steady
    assert 0.2 <= seen.seconds < 0.23
    assert Gpu(lambda _: 1965).warm_up(top_mhz=1980).seconds < 0.23, "one step below it"


@pytest.mark.parametrize(
    "mhz_at",
    [
        lambda t: 1500,  # held at another clock
        lambda t: 345 if t < 0.1 else 1980,  # idle at first
        lambda t: 1980 if t < 0.15 else 1500,  # a reading from before, or a board that drops under load
        lambda t: None if t < 0.05 else 1980,
    ],
)
def test_anything_else_is_watched_for_as_long_as_ever(mhz_at: Callable[[float], int | None]) -> None:
    assert Gpu(mhz_at).warm_up(top_mhz=1980).seconds >= 0.5


def test_one_step_of_jitter_is_steady() -> None:
    assert Gpu(lambda t: 1965 + 15 * (int(t * 100) % 2)).warm_up().steady


def test_a_clock_that_never_settles_is_bounded_and_reported() -> None:
    seen = Gpu(lambda t: 1980 - int(t * 100)).warm_up(maximum_s=6.0)
    assert not seen.steady
    assert 6.0 <= seen.seconds < 6.1
    assert re.search(r"still moved between 13\d\d and 14\d\d MHz after 6.0 s", seen.reason)


def test_a_power_limited_clock_that_swings_around_a_level_is_steady_and_said_to_swing() -> None:
    seen = Gpu(lambda t: 1980 - min(300, int(t * 100)) + (60 if int(t * 20) % 2 else -60)).warm_up()
    assert (seen.steady, seen.swings) == (True, True)
    assert seen.seconds > 3.0, "the level sank for three seconds"
    assert not Gpu(lambda _: 1980).warm_up().swings


@pytest.mark.parametrize("step", [0.02, 0.25, 2.0])
def test_long_units_of_work_can_settle_too(step) -> None:
    assert Gpu(lambda _: 1980, step).warm_up().steady


def test_an_unreadable_clock_is_recorded() -> None:
    seen = Gpu(lambda _: None).warm_up()
    assert not seen.steady
    assert seen.end_mhz is None
    assert seen.unreadable == seen.readings + seen.unreadable > 0
    assert "could not be read" in seen.reason


def test_gaps_in_the_readings_are_counted() -> None:
    seen = Gpu(lambda t: None if int(t * 100) % 4 == 0 else 1980).warm_up()
    assert seen.steady
    assert seen.unreadable > 0
