"""Change points of whole histories, and how often they are wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binom

from fusebench.schema import ExitCode
from fusebench.stats.changepoint import change_points
from fusebench.stats.random_orders import RandomOrders
from fusebench.verdict.history.series import Figure, Series
from fusebench.verdict.history.shifts import Track, blind, find_shifts, history_exit_code, orders_needed, runs_needed

QUICK = RandomOrders(1999)


def make_series(
    name: str,
    nights: int,
    steps: Sequence[tuple[int, float]] = (),
    *,
    generator: np.random.Generator,
    scatter: float = 0.004,
    time_us: float = 26.0,
    yardstick_steps: Sequence[tuple[int, float]] = (),
    figure: Figure = Figure.SOL,
    gating: bool = True,
) -> Series:
    """A kernel at 90 % of the speed of light; heavy-tailed nights, one in thirty disturbed."""
    logs = scatter * generator.standard_t(5.0, nights) + (generator.random(nights) < 1 / 30) * generator.exponential(0.05, nights)
    times, yardstick = time_us * np.exp(logs), np.full(nights, 0.9 * time_us)
    for values, changes in ((times, steps), (yardstick, yardstick_steps)):
        for place, factor in changes:
            values[place:] *= factor
    return Series(
        suite="s",
        case=name,
        kernel="op/fused@1",
        figure=figure,
        places=tuple(range(nights)),
        values=tuple((times / yardstick if figure is not Figure.RAW else times).tolist()),
        times_us=tuple(times.tolist()),
        gating=gating,
    )


def one_track(nights: int, steps: Sequence[tuple[int, float]], seed: int = 1, **kwargs: object) -> Track:
    (track,) = find_shifts([make_series("one", nights, steps, generator=np.random.default_rng(seed), **kwargs)], test=QUICK)  # type: ignore[arg-type]
    return track


def suite(seed: int, changed: int = 0, *, count: int = 12, nights: int = 30, factor: float = 1.02, **kwargs: float) -> list[Series]:
    """`count` series of which the first `changed` move by `factor` in their middle."""
    generator = np.random.default_rng(seed)
    steps = [[(nights // 2, factor)] if place < changed else [] for place in range(count)]
    return [make_series(f"c{place}", nights, own, generator=generator, **kwargs) for place, own in enumerate(steps)]  # type: ignore[arg-type]


def test_a_planted_step_of_two_percent_is_found_at_its_run_among_thirty_series() -> None:
    tracks = find_shifts(suite(1, changed=1, count=30, nights=60))
    (shift,) = tracks[0].shifts
    assert abs(shift.place - 30) <= 1
    assert (shift.change, shift.time_change) == pytest.approx((1.02, 1.02), abs=0.004)
    assert shift.yardstick_change == pytest.approx(1.0)
    assert shift.slower
    assert shift.p_value * 30 <= shift.adjusted_p * 1.001 <= 0.05
    assert (shift.place_before, shift.runs_before + shift.runs_after) == (shift.place - 1, 60)
    assert not any(track.shifts for track in tracks[1:])
    assert history_exit_code(tracks) is ExitCode.REGRESSION


# Times of 1 ms, so that no clock tick widens the margin, and a margin that lets everything pass: what is left is the correction.
STEADY = {"time_us": 1000.0}
SUITES = 200


def test_suites_without_change_raise_an_alarm_no_more_often_than_promised() -> None:
    alarms = sum(any(track.shifts for track in find_shifts(suite(seed, **STEADY), margin=1e-9, test=QUICK)) for seed in range(SUITES))
    assert alarms <= binom.ppf(0.999, SUITES, 0.05)


def test_without_the_correction_suites_raise_too_many_alarms() -> None:
    """The planted defect that the test before must be able to see."""
    alarms = sum(any(change_points(one.values, QUICK, level=0.05) for one in suite(seed, **STEADY)) for seed in range(20))
    assert alarms > binom.ppf(0.999, SUITES, 0.05) / SUITES * 20


def test_of_many_findings_few_are_false() -> None:
    """Half of the series change: the share of false ones among those called changed stays within the rate."""
    shares = []
    for seed in range(60):
        found = [
            place for place, track in enumerate(find_shifts(suite(seed, changed=6, **STEADY), margin=1e-9, test=QUICK)) if track.shifts
        ]
        shares.append(sum(place >= 6 for place in found) / max(1, len(found)))
    assert np.mean(shares) <= 0.05 + 3 * np.std(shares) / math.sqrt(len(shares))


def test_a_bump_that_returns_is_two_changes_and_fails_no_gate() -> None:
    track = one_track(70, [(25, 1.04), (40, 1 / 1.04)])
    assert [shift.slower for shift in track.shifts] == [True, False]
    assert all(abs(shift.place - place) <= 1 for shift, place in zip(track.shifts, (25, 40), strict=True))
    assert not track.newest_slower
    assert history_exit_code([track]) is ExitCode.PASS
    assert all(shift.adjusted_p <= 0.05 for shift in track.shifts)


def test_a_slowdown_that_is_followed_by_a_smaller_improvement_fails_no_gate_and_one_that_follows_does() -> None:
    assert history_exit_code([one_track(90, [(30, 1.05), (60, 0.97)])]) is ExitCode.PASS
    assert history_exit_code([one_track(90, [(30, 0.95), (60, 1.03)])]) is ExitCode.REGRESSION


def test_changes_within_the_margin_are_left_out() -> None:
    series = [make_series("one", 60, [(30, 1.015)], generator=np.random.default_rng(2), scatter=0.001)]
    assert find_shifts(series, margin=0.01, test=QUICK)[0].shifts
    assert not find_shifts(series, margin=0.03, test=QUICK)[0].shifts


def test_the_margin_of_a_short_kernel_is_a_tick_of_the_clock() -> None:
    """1.5 % of 1.5 us is less than 32 ns."""
    assert not one_track(60, [(30, 1.015)], scatter=0.001, time_us=1.5).shifts
    assert one_track(60, [(30, 1.015)], scatter=0.001, time_us=26.0).shifts


def test_what_is_small_does_not_lend_its_strength_to_what_is_false() -> None:
    """Ten thousand-fold certain changes of 0.3 % are not reported, and do not count as findings that loosen the level of the others."""
    small = suite(3, changed=11, nights=40, factor=1.003, scatter=0.0002)
    tracks = find_shifts(small, margin=0.01, test=QUICK)
    assert not any(track.shifts for track in tracks)
    weak = 0.05 * 2 / 12  # stands beside eleven findings, not alone

    def certain_or_weak(parts: Sequence[np.ndarray], statistic: float, smallest: int) -> float:
        return weak

    noisy = [*small[:11], make_series("noisy", 40, [(20, 1.02)], generator=np.random.default_rng(5), scatter=0.01)]
    assert not any(track.shifts for track in find_shifts(noisy, margin=0.01, test=certain_or_weak))
    large = [*suite(3, changed=11, nights=40, factor=1.03, scatter=0.0002)[:11], noisy[-1]]
    assert all(track.shifts for track in find_shifts(large, margin=0.01, test=certain_or_weak))


def test_a_yardstick_that_moved_is_no_change_of_the_kernel() -> None:
    track = one_track(60, [], yardstick_steps=[(30, 0.96)])
    (shift,) = track.shifts
    assert (shift.slower, shift.yardstick_moved, track.newest_slower) == (True, True, False)
    assert shift.yardstick_change == pytest.approx(0.96)
    assert history_exit_code([track]) is ExitCode.PASS
    both = one_track(60, [(30, 1.04)], yardstick_steps=[(30, 0.96)])
    assert both.newest_slower, "a kernel that got slower itself is not excused"


def test_raw_times_have_no_yardstick() -> None:
    (shift,) = one_track(60, [(30, 1.04)], figure=Figure.RAW).shifts
    assert (shift.yardstick_change, shift.yardstick_moved) == (None, False)
    assert shift.before == pytest.approx(26.0, rel=0.01)


def test_series_of_equal_work_have_equal_changes() -> None:
    one = make_series("one", 40, [(20, 1.03)], generator=np.random.default_rng(1))
    first, second = find_shifts([one, make_copy(one)], test=QUICK)
    assert first.shifts == second.shifts != ()


def make_copy(series: Series) -> Series:
    return Series(**{name: getattr(series, name) for name in series.__struct_fields__} | {"suite": "models/other"})


def test_short_series_are_told_apart_from_steady_ones() -> None:
    generator = np.random.default_rng(1)
    short, steady = find_shifts([make_series("a", 9, generator=generator), make_series("b", 40, generator=generator)], test=QUICK)
    assert (short.too_short, steady.too_short) == (True, False)
    assert find_shifts([]) == []


def test_a_gate_that_could_see_nothing_is_undecided() -> None:
    generator = np.random.default_rng(1)
    ten = [make_series(f"c{place}", 10, generator=generator) for place in range(200)]
    assert not blind(find_shifts(ten[:6], test=QUICK)), "2 of 252 orders is less than 0.05 / 6"
    assert blind(find_shifts(ten[:7], test=QUICK))
    assert history_exit_code(find_shifts(ten, test=QUICK)) is ExitCode.UNDECIDED
    assert history_exit_code([]) is ExitCode.UNDECIDED
    assert (runs_needed(1), runs_needed(7), runs_needed(866)) == (10, 12, 18)


def test_an_advisory_series_fails_no_gate() -> None:
    track = one_track(60, [(30, 1.04)], gating=False)
    assert track.newest_slower
    assert history_exit_code([track]) is ExitCode.PASS


@pytest.mark.parametrize("count", [1, 12, 866, 5000])
def test_there_are_orders_enough_for_one_change_among_all_to_stand(count: int) -> None:
    assert 2 / (1 + orders_needed(count)) <= 0.05 / count


def test_refuses_a_margin_that_is_none() -> None:
    with pytest.raises(ValueError, match="margin=0"):
        find_shifts([], margin=0.0)
