"""What `fusebench calibrate` prints of a record."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.report import calibration_table
from fusebench.report.calibration_table import calibration_document, calibration_report
from fusebench.report.run.summary import calibration_words
from fusebench.report.wording import DASH
from fusebench.runner.calibrate.summary import summary_of, summed_up
from fusebench.schema import (
    CacheState,
    CalibrationNote,
    Estimate,
    GroundTruth,
    InjectedTrial,
    Injection,
    InjectionPlace,
    VerdictKind,
    VisibleEffect,
)
from fusebench.stats.rates import clustered_rate
from fusebench.stats.sequential import Plan
from fusebench.store.calibrations import CalibrationRecord, load_calibration
from fusebench.verdict.calibration import FEWEST_TRIALS, Calibration, as_trials, summarise

RESULTS = Path(__file__).parents[2] / "results"


ENOUGH = 60
"""Cases of which all are found, so that at least 95 % are with a confidence of 95 %."""


def trials(launches: int, verdict: VerdictKind, cases: int = ENOUGH) -> list[InjectedTrial]:
    """Of 5 us, of so many cases: one of an A/A pair that passes, and one slowed down by 2 % that gets `verdict`."""
    equal = [InjectionPlace(0, f"calls_{launches}_{number}", "op/k@1", Injection.IDENTICAL, 0.0) for number in range(cases)]
    kinds = [(place, VerdictKind.PASS) for place in equal] + [(slowed(launches, number), verdict) for number in range(cases)]
    return [
        InjectedTrial(
            place=place, time_us=5.0, first=kind, verdict=kind, change=Estimate(1.0, 0.99, 1.01), replicates=12, launches=launches
        )
        for place, kind in kinds
    ]


def slowed(launches: int, number: int) -> InjectionPlace:
    return InjectionPlace(0, f"calls_{launches}_{number}", "op/k@1", Injection.DELAY, 0.02)


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
        ground_truths=tuple(
            GroundTruth(place=slowed(launches, number), time_us=5.0, change=Estimate(1.02, 1.019, 1.021), replicates=60)
            for launches in (1, 2)
            for number in range(ENOUGH)
        ),
        components=(),
    )


@pytest.fixture
def summary(record: CalibrationRecord) -> Calibration:
    return summarise(as_trials(record.trials, record.ground_truths))


def rows_of(text: str) -> list[list[str]]:
    """The cells of every row that begins with a class of durations: the table of classes, then that of sizes."""
    lines = [line for line in text.splitlines() if line.startswith(("| under ", "| 3 to ", "| 10 to ", "| 50 us "))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_keep_calls_of_one_launch_and_of_several_apart(record: CalibrationRecord, summary: Calibration) -> None:
    text = calibration_report(record, summary)
    by_class, by_size = rows_of(text)[:2], rows_of(text)[2:]
    assert [(row[0], row[1], *row[5:7]) for row in by_class] == [
        ("3 to 10 us", "60", "2.00 %", "1.90 %"),
        ("3 to 10 us, several launches", "60", "more than 2.00 %", DASH),
    ]
    assert [tuple(row[:5]) for row in by_size] == [
        ("3 to 10 us", "2.00 %", "60 of 60", "60", "95.1 %"),
        ("3 to 10 us, several launches", "2.00 %", "0 of 60", "60", "0.0 %"),
    ]
    assert "in calls of one launch: 3 to 10 us: 2.00 %; in calls of several launches: 3 to 10 us: 5.00 %." in text


def test_the_document_says_which_classes_are_of_several_launches(record: CalibrationRecord, summary: Calibration) -> None:
    found = calibration_document(record, summary, "file")["classes"]
    assert [(one["low_us"], one["several_launches"], one["smallest_found"]) for one in found] == [
        (3.0, False, pytest.approx(0.02)),
        (3.0, True, None),
    ]


def test_the_table_claims_as_little_from_few_trials_as_the_headline(record: CalibrationRecord) -> None:
    few = summed_up(
        msgspec.structs.replace(
            record,
            trials=(*trials(1, VerdictKind.REGRESSION, FEWEST_TRIALS - 1), *trials(2, VerdictKind.REGRESSION)),
        )
    )
    text, document = calibration_report(few, summary_of(few)), calibration_document(few, summary_of(few), "file")
    assert "in calls of one launch: 3 to 10 us: too few trials; in calls of several launches: 3 to 10 us: 2.00 %." in text
    rows = rows_of(text)
    assert [row[5:7] for row in rows[:2]] == [["too few trials", "too few trials"], ["2.00 %", "1.90 %"]]
    assert [row[2][:8] for row in rows[2:]] == ["19 of 19", "60 of 60"], "what was found is shown all the same"
    assert [one["smallest_found"] for one in document["classes"]] == [None, pytest.approx(0.02)]


def test_the_stored_calibration_says_the_same_in_headline_and_table() -> None:
    record = load_calibration(RESULTS, "NVIDIA H200")
    assert record is not None
    # Warnings that were stored before 0.3.0 write `0.5%`.
    record = msgspec.structs.replace(record, warnings=tuple(re.sub(r"(?<=\d)%", " %", text) for text in record.warnings))
    assert summed_up(record) == record, "the stored note is what today's rules make of its trials"
    text = calibration_report(record, summary_of(record))
    rows = rows_of(text)[: len(record.note.effects)]
    assert [row[5] for row in rows] == [f"more than {least} %" for least in ("4.53", "0.97", "0.49", "0.53", "1.87", "1.01")]
    assert [row[6] == "too few trials" for row in rows] == [row[5] == "too few trials" for row in rows]
    for row in rows:
        assert f"{row[0].removesuffix(', several launches')}: {row[5]}" in text


def test_a_bound_from_one_case_is_words_and_no_figure(record: CalibrationRecord) -> None:
    few = [clustered_rate([(0, 16)], 0.0), clustered_rate([(0, 8), (0, 8)], 1.0)]
    assert [calibration_table._rate(one) for one in few] == ["0 of 16 (too few cases for a bound)"] * 2
    assert calibration_table._rate(clustered_rate([(0, 1)] * 16, 0.0)) == "0 of 16 (up to 20.59 %)"
    note = msgspec.structs.replace(record.note, comparisons=16, false_regression_high=few[0].high)
    assert "called slower (too few cases for a bound)" in calibration_words(note, "cuda", note.timer, note.cache)
