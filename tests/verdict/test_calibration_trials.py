"""Injected slowdowns count under their ground truth."""

from __future__ import annotations

import pytest

from fusebench.schema import Estimate, GroundTruth, InjectedTrial, Injection, InjectionPlace, VerdictKind
from fusebench.verdict.calibration import as_trials, summarise, uncounted


def place(nominal: float, case: str = "c", injection: Injection = Injection.ROWS) -> InjectionPlace:
    return InjectionPlace(0, case, "op/k@1", injection if nominal else Injection.IDENTICAL, nominal)


def trial(nominal: float, kind: VerdictKind, time_us: float = 12.0, case: str = "c", launches: int = 1) -> InjectedTrial:
    return InjectedTrial(
        place=place(nominal, case),
        time_us=time_us,
        first=kind,
        verdict=kind,
        change=Estimate(1.0, 0.99, 1.01),
        replicates=12,
        launches=launches,
    )


def truth(nominal: float, measured: float, case: str = "c", *, half: float = 0.002) -> GroundTruth:
    change = Estimate(1 + measured, 1 + measured - half, 1 + measured + half)
    return GroundTruth(place=place(nominal, case), time_us=12.0, change=change, replicates=60)


def test_a_slowdown_counts_as_what_was_measured_and_not_as_what_was_meant() -> None:
    """2 % more rows of a kernel of 3 us cost it 1 %."""
    trials = as_trials([trial(0.01, VerdictKind.PASS), trial(0.02, VerdictKind.REGRESSION)], [truth(0.01, 0.005), truth(0.02, 0.0095)])
    assert [one.injected for one in trials] == pytest.approx([0.00725] * 2), "both lie nearest to 1 %, and count under their mean"
    assert uncounted([trial(0.01, VerdictKind.PASS)], [truth(0.01, 0.005)]) == []


def test_each_class_of_durations_has_its_own_truths() -> None:
    found = as_trials(
        [trial(0.02, VerdictKind.PASS, 2.0, "short"), trial(0.02, VerdictKind.REGRESSION, 60.0, "long")],
        [truth(0.02, 0.016, "short"), truth(0.02, 0.02, "long")],
    )
    assert [one.injected for one in found] == pytest.approx([0.016, 0.02])


def test_calls_of_several_launches_have_truths_of_their_own() -> None:
    found = as_trials(
        [trial(0.02, VerdictKind.PASS, case="one"), trial(0.02, VerdictKind.REGRESSION, case="two", launches=2)],
        [truth(0.02, 0.016, "one"), truth(0.02, 0.02, "two")],
    )
    assert [(one.injected, one.launches) for one in found] == [(pytest.approx(0.016), 1), (pytest.approx(0.02), 2)]
    assert [one.name for one in summarise(found).classes] == ["10 to 50 us", "10 to 50 us, several launches"]


def test_an_injection_on_a_limit_between_classes_stays_one() -> None:
    kinds = [trial(0.02, VerdictKind.PASS, time_us) for time_us in (9.9, 10.1)]
    assert len({one.injected for one in as_trials(kinds, [truth(0.02, 0.019)])}) == 1


@pytest.mark.parametrize(
    ("ground_truths", "said"),
    [
        ([], "was not measured"),
        ([truth(0.02, 0.001)], "+0.10 % [-0.10 %, +0.30 %], which is not told"),
        ([truth(0.02, 0.02, half=0.011)], "which is not told from half or twice as much"),
    ],
)
def test_what_slows_nothing_down_is_not_counted_and_is_named(ground_truths: list[GroundTruth], said: str) -> None:
    trials = [trial(0.0, VerdictKind.PASS), trial(0.02, VerdictKind.PASS)]
    assert [one.injected for one in as_trials(trials, ground_truths)] == [0.0]
    (text,) = uncounted(trials, ground_truths)
    assert text.startswith("op/k@1 on c, rows for 2.0 %: ")
    assert said in text


def test_an_injection_that_is_told_from_half_and_from_twice_as_much_counts() -> None:
    assert uncounted([trial(0.02, VerdictKind.PASS)], [truth(0.02, 0.02, half=0.009)]) == []


def test_equal_arms_stay_equal_whatever_was_measured() -> None:
    summary = summarise(as_trials([trial(0.0, VerdictKind.REGRESSION), trial(0.0, VerdictKind.PASS)], []))
    assert (summary.false_regressions.count, summary.false_regressions.total) == (1, 2)
