from __future__ import annotations

import math
import random

import msgspec
import pytest
from scipy.stats import binomtest

from fusebench.schema import VerdictKind
from fusebench.stats.rates import rate, visible_effect
from fusebench.verdict.calibration import FEWEST_TRIALS, Trial, summarise


def trials(
    time_us: float, planted: float, found: int, total: int, kind: VerdictKind = VerdictKind.REGRESSION, *, launches: int = 1
) -> list[Trial]:
    other = VerdictKind.PASS
    return [
        Trial(
            time_us=time_us,
            injected=planted,
            kind=kind if place < found else other,
            launches=launches,
            replicates=12 + place,
            gpu_seconds=0.01 * place,
        )
        for place in range(total)
    ]


@pytest.mark.parametrize(("count", "total"), [(0, 1000), (1, 1000), (7, 40), (40, 40)])
def test_intervals_of_rates_are_the_exact_ones(count: int, total: int) -> None:
    found = rate(count, total)
    expected = binomtest(count, total).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_none_of_a_thousand_is_not_never() -> None:
    assert rate(0, 1000, 0.90).high == pytest.approx(3 / 1000, rel=0.01)  # the rule of three, one-sided 95 %
    assert str(rate(0, 1000)) == "0 of 1000 (0.00 % to 0.37 %)"
    nothing = rate(0, 0)
    assert (nothing.low, nothing.high) == (0.0, 1.0)
    assert math.isnan(nothing.value)


def test_classes_of_duration_are_kept_apart() -> None:
    calibration = summarise([*trials(2.8, 0.0, 3, 100), *trials(12.0, 0.0, 0, 500), *trials(3.0, 0.0, 0, 10), *trials(80.0, 0.0, 1, 10)])
    assert [one.name for one in calibration.classes] == ["under 3 us", "3 to 10 us", "10 to 50 us", "50 us and more"]
    assert [one.false_regressions.count for one in calibration.classes] == [3, 0, 0, 1]
    assert (calibration.false_regressions.count, calibration.false_regressions.total) == (4, 620)
    assert calibration.of(12.0) is calibration.classes[2]
    assert summarise(trials(12.0, 0.0, 0, 5)).of(2.0) is None


def test_calls_of_several_launches_are_kept_apart_from_calls_of_one() -> None:
    """As on an H200 at 5 us: 2 % is found in one launch, and hidden in two."""
    calibration = summarise(
        [
            *trials(5.0, 0.02, 10, 20, launches=2),
            *trials(2.0, 0.02, 1, 20, launches=3),
            *trials(5.0, 0.0, 0, 40, launches=2),
            *trials(5.0, 0.02, 60, 60),
            *trials(60.0, 0.02, 60, 60),
        ]
    )
    names = ["3 to 10 us", "50 us and more", "under 3 us, several launches", "3 to 10 us, several launches"]
    assert [one.name for one in calibration.classes] == names
    assert [one.smallest_found for one in calibration.classes] == [0.02, 0.02, None, None]
    assert [one.false_regressions.total for one in calibration.classes] == [0, 0, 0, 40]
    assert calibration.of(5.0) is calibration.classes[0]
    assert calibration.of(5.0, launches=2) is calibration.of(5.0, launches=7) is calibration.classes[3]
    assert calibration.of(60.0, launches=2) is None
    assert calibration.false_regressions.total == 40


def test_where_the_timer_sees_no_launches_classes_are_by_duration_alone() -> None:
    calibration = summarise(trials(5.0, 0.0, 0, 10, launches=0))
    assert [one.name for one in calibration.classes] == ["3 to 10 us"]
    assert calibration.of(5.0, launches=0) is calibration.of(5.0) is calibration.classes[0]


def test_the_smallest_effect_is_the_smallest_above_which_all_are_found() -> None:
    lucky = [*trials(12.0, 0.005, 97, 100), *trials(12.0, 0.01, 60, 100), *trials(12.0, 0.02, 99, 100), *trials(12.0, 0.05, 100, 100)]
    (one,) = summarise(lucky).classes
    assert one.smallest_found == 0.02
    assert list(one.found) == [0.005, 0.01, 0.02, 0.05]
    assert one.passed[0.01].count == 40
    (blind,) = summarise(trials(12.0, 0.05, 94, 100)).classes
    assert blind.smallest_found is None
    assert math.isnan(blind.median_replicates)


def test_a_size_is_claimed_by_the_lower_limit_of_its_rate_and_not_by_the_rate() -> None:
    """95 of 100 may be 90 % of all; 59 of 59 are at least 95 % with a confidence of 95 %, and 58 of 58 are not."""
    (one,) = summarise([*trials(12.0, 0.01, 95, 100), *trials(12.0, 0.02, 59, 59)]).classes
    assert (one.smallest_found, one.least_found[0.01]) == (0.02, pytest.approx(0.898, abs=0.001))
    (none,) = summarise([*trials(12.0, 0.01, 95, 100), *trials(12.0, 0.02, 58, 58)]).classes
    assert (none.smallest_found, none.largest_tried) == (None, 0.01)


def clustered(size: float, clusters: list[tuple[int, int]], name: str = "") -> list[Trial]:
    """Trials at 12 us: of each cluster, those found and all."""
    return [
        msgspec.structs.replace(trial, cluster=(name, number))
        for number, (found, total) in enumerate(clusters)
        for trial in trials(12.0, size, found, total)
    ]


def test_trials_of_one_case_count_for_less_than_as_many_cases() -> None:
    """A size whose cases were found either always or never tells that a case of another size is worth one trial, too."""
    split = clustered(0.005, [(6, 6), (0, 6)] * 10)
    (one,) = summarise([*split, *clustered(0.01, [(6, 6)] * 20)]).classes
    worth = one.found[0.01].effective
    assert worth is not None
    assert 15 < worth < 20
    assert (one.found[0.01].count, one.found[0.01].clusters) == (120, 20)
    assert (one.smallest_found, one.least_found[0.01] < 0.87) == (None, True)
    (many,) = summarise([*split, *clustered(0.01, [(1, 1)] * 60)]).classes
    assert many.smallest_found == 0.01
    mixed = clustered(0.005, [(3, 6), (2, 6), (4, 6), (3, 6)] * 5)
    (alike,) = summarise([*mixed, *clustered(0.01, [(6, 6)] * 20)]).classes
    assert alike.smallest_found == 0.01, "cases that do not differ from each other are worth all of their trials"


def test_sizes_of_few_trials_count_neither_for_nor_against() -> None:
    few = FEWEST_TRIALS - 1
    enough = [*trials(12.0, 0.0, 0, 20), *trials(12.0, 0.01, 10, 20), *trials(12.0, 0.02, 60, 60)]
    (one,) = summarise([*trials(12.0, 0.005, few, few), *enough, *trials(12.0, 0.05, 0, few)]).classes
    assert (one.smallest_found, one.largest_tried, one.visible) == (0.02, 0.02, pytest.approx(0.019))
    assert list(one.found) == [0.005, 0.01, 0.02, 0.05]
    (none,) = summarise([*trials(12.0, 0.0, 0, 20), *trials(12.0, 0.02, few, few)]).classes
    assert (none.smallest_found, none.largest_tried, none.visible) == (None, None, None)
    (unanchored,) = summarise([*trials(12.0, 0.0, 0, few), *trials(12.0, 0.02, 60, 60)]).classes
    assert (unanchored.smallest_found, unanchored.visible) == (0.02, None)


def test_the_visible_effect_is_where_the_curve_crosses() -> None:
    found = {0.0: rate(0, 100), 0.01: rate(90, 100), 0.02: rate(100, 100)}
    assert visible_effect(found) == pytest.approx(0.015)
    assert visible_effect({0.01: rate(100, 100)}) is None
    assert visible_effect({0.01: rate(10, 100), 0.02: rate(90, 100)}) is None
    # 0.5 % found more often than 1 % by luck: both count as what they share.
    bumpy = {0.005: rate(96, 100), 0.01: rate(84, 100), 0.02: rate(100, 100)}
    assert visible_effect(bumpy) == pytest.approx(0.015)


def test_equal_arms_are_counted_by_what_they_were_called() -> None:
    (one,) = summarise(
        [
            *trials(12.0, 0.0, 2, 100, VerdictKind.IMPROVEMENT),
            *trials(12.0, 0.0, 5, 50, VerdictKind.UNDECIDED),
            *trials(12.0, 0.01, 10, 10, VerdictKind.REGRESSION),
        ]
    ).classes
    assert (one.false_regressions.count, one.false_improvements.count, one.undecided.count) == (0, 2, 5)
    assert one.false_regressions.total == 150
    assert one.median_replicates == pytest.approx(12 + 36.5, abs=1)
    assert one.slowest_gpu_seconds == pytest.approx(0.99)


def test_the_true_rate_lies_in_the_interval_as_often_as_it_says() -> None:
    generator = random.Random(1)
    missed = 0
    for _ in range(500):
        found = rate(sum(generator.random() < 0.03 for _ in range(200)), 200)
        missed += not found.low <= 0.03 <= found.high
    assert missed / 500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


def test_refuses_trials_that_say_nothing() -> None:
    with pytest.raises(ValueError, match="not negative"):
        summarise([Trial(time_us=12.0, injected=-0.01, kind=VerdictKind.PASS)])
    with pytest.raises(ValueError, match="positive time"):
        summarise([Trial(time_us=0.0, injected=0.0, kind=VerdictKind.PASS)])
    with pytest.raises(ValueError, match="launches that are not negative"):
        summarise([Trial(time_us=12.0, injected=0.0, kind=VerdictKind.PASS, launches=-1)])
    with pytest.raises(ValueError, match="not a rate"):
        rate(3, 2)
