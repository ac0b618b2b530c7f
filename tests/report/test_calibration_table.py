"""What `fusebench calibrate` prints of a record."""

from __future__ import annotations

from types import ModuleType

import pytest

from fusebench.report.calibration_table import calibration_document, calibration_report
from fusebench.report.wording import DASH
from fusebench.schema import CacheState, CalibrationNote, Estimate, VerdictKind, VisibleEffect
from fusebench.stats.calibration import Calibration, summarise
from fusebench.stats.planting import Place, PlantedTrial, Planting, Truth, as_trials
from fusebench.stats.sequential import Plan
from fusebench.store.calibrations import CalibrationRecord


def trials(launches: int, verdict: VerdictKind) -> list[PlantedTrial]:
    """Of 5 us: one of equal kernels that passes, and one slowed down by 2 % that gets `verdict`."""
    kinds = ((Place(0, f"calls_{launches}", "op/k@1", Planting.IDENTICAL, 0.0), VerdictKind.PASS), (slowed(launches), verdict))
    return [
        PlantedTrial(place=place, time_us=5.0, first=kind, verdict=kind, change=Estimate(1.0, 0.99, 1.01), replicates=12, launches=launches)
        for place, kind in kinds
    ]


def slowed(launches: int) -> Place:
    return Place(0, f"calls_{launches}", "op/k@1", Planting.DELAY, 0.02)


@pytest.fixture
def record(synthetic: ModuleType) -> CalibrationRecord:
    """One launch and two launches of 5 us: of the first 2 % is found, of the second it is not."""
    run = synthetic.make_run()
    one = VisibleEffect(low_us=3.0, high_us=10.0, comparisons=1, smallest=0.02)
    return CalibrationRecord(
        note=CalibrationNote(
            device_name="NVIDIA H200",
            created="t",
            timer="cupti",
            cache=CacheState.COLD,
            comparisons=2,
            false_regressions=0,
            false_regression_high=0.84,
            effects=(one, VisibleEffect(low_us=3.0, high_us=10.0, comparisons=1, smallest=0.05, several_launches=True)),
        ),
        environment=run.environment,
        timer="cupti",
        cache=CacheState.COLD,
        looks=Plan(),
        sampling=run.plan,
        processes=5,
        sessions=("t",),
        trials=(*trials(1, VerdictKind.REGRESSION), *trials(2, VerdictKind.UNDECIDED)),
        truths=tuple(Truth(place=slowed(launches), time_us=5.0, change=Estimate(1.02, 1.019, 1.021), replicates=60) for launches in (1, 2)),
        components=(),
    )


@pytest.fixture
def summary(record: CalibrationRecord) -> Calibration:
    return summarise(as_trials(record.trials, record.truths))


def test_the_tables_keep_calls_of_one_launch_and_of_several_apart(record: CalibrationRecord, summary: Calibration) -> None:
    text = calibration_report(record, summary)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| 3 to 10 us")]
    by_class, by_size = rows[:2], rows[2:]
    assert [(row[0], row[1], row[5]) for row in by_class] == [("3 to 10 us", "1", "2.00%"), ("3 to 10 us, several launches", "1", DASH)]
    assert [(row[0], row[1], row[2][:6]) for row in by_size] == [
        ("3 to 10 us", "2.00%", "1 of 1"),
        ("3 to 10 us, several launches", "2.00%", "0 of 1"),
    ]
    assert "in calls of one launch: 3 to 10 us: 2.00%; in calls of several launches: 3 to 10 us: 5.00%." in text


def test_the_document_says_which_classes_are_of_several_launches(record: CalibrationRecord, summary: Calibration) -> None:
    found = calibration_document(record, summary, "file")["classes"]
    assert [(one["low_us"], one["several_launches"], one["smallest_found"]) for one in found] == [
        (3.0, False, pytest.approx(0.02)),
        (3.0, True, None),
    ]
