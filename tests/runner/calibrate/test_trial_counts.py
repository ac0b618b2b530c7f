"""Pairs of each slowdown per visit: a class of calls has the trials that a claim needs, and no target fewer than asked for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device import Device, environment_of
from fusebench.runner.calibrate.pilots import Pilot
from fusebench.runner.calibrate.strategy import injected_counts
from fusebench.runner.calibrate.summary import record_of, summary_of
from fusebench.verdict.calibration import FEWEST_TRIALS, as_trials, summarise
from helpers.calibration_bench import calibrate, of, options


def pilot(time_us: float, *slowdowns: float, launches: int = 1) -> Pilot:
    return Pilot(time_us=time_us, launches=launches, values=dict.fromkeys(slowdowns, 17))


def test_subjects_of_one_class_share_the_trials_that_it_needs() -> None:
    counts = injected_counts({3: pilot(5.0, 0.01), 7: pilot(9.9, 0.01)}, passes=2, fewest=1, trials=18)
    assert counts == {3: {0.01: 5}, 7: {0.01: 5}}, "2 subjects of 2 passes: 4.5 each"


@pytest.mark.parametrize("other", [pilot(12.0, 0.01), pilot(5.0, 0.01, launches=2)])
def test_another_duration_and_calls_of_several_launches_are_classes_of_their_own(other: Pilot) -> None:
    assert injected_counts({0: pilot(5.0, 0.01), 1: other}, passes=2, fewest=3, trials=20) == {0: {0.01: 10}, 1: {0.01: 10}}


def test_a_timer_that_sees_no_launches_tells_no_calls_apart() -> None:
    both = {0: pilot(5.0, 0.01, launches=0), 1: pilot(5.0, 0.01, launches=1)}
    assert injected_counts(both, passes=1, fewest=3, trials=20) == {0: {0.01: 10}, 1: {0.01: 10}}


def test_only_subjects_that_plant_a_slowdown_count_for_it() -> None:
    counts = injected_counts({0: pilot(5.0, 0.01, 0.02), 1: pilot(5.0, 0.02), 2: pilot(5.0)}, passes=1, fewest=3, trials=20)
    assert counts == {0: {0.01: 20, 0.02: 10}, 1: {0.02: 10}, 2: {}}


def test_no_subject_has_fewer_than_asked_for() -> None:
    many = {place: pilot(5.0, 0.01) for place in range(40)}
    assert injected_counts(many, passes=2, fewest=3, trials=20) == {place: {0.01: 3} for place in range(40)}
    assert injected_counts({0: pilot(5.0, 0.01)}, passes=2, fewest=3, trials=0) == {0: {0.01: 3}}


def test_a_calibration_of_one_target_per_class_measures_what_is_wanted_and_claims_nothing_of_others(cpu: Device, reporter: Any) -> None:
    """However many pairs are injected, one case does not tell how far others differ."""
    environment = environment_of(cpu, Path())
    claims = {}
    for trials in (0, FEWEST_TRIALS):
        found = calibrate(cpu, reporter, injected=3, trials=trials)
        assert len(of(found, 0.02)) == 2 * max(trials, 2 * 3)
        claims[trials] = [one.smallest_found for one in summary_of(record_of(found, options(), environment)).classes]
    assert claims == {0: [None, None], FEWEST_TRIALS: [None, None]}
    every = [trial for one in range(60) for trial in of_case(found.trials, f"case {one}")]
    truths = [truth for one in range(60) for truth in of_case(found.ground_truths, f"case {one}")]
    of_sixty = summarise(as_trials(every, truths))
    assert [one.smallest_found for one in of_sixty.classes] == [pytest.approx(0.02, rel=0.1)] * 2, "sixty cases do"


def of_case(found: Iterable[Any], name: str) -> list[Any]:
    """Trials or ground truths as those of cases with another name."""
    return [msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, case=f"{name}, {one.place.case}")) for one in found]
