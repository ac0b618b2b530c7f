"""Calibrations as they lie on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.runner.calibrate.summary import summary_of
from fusebench.store.calibration_note import calibration_file, load_note
from fusebench.store.calibrations import CalibrationRecord, load_calibration, read_calibration, write_calibration
from fusebench.store.record_files import encode_record

DEVICE = "NVIDIA H200"
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def committed() -> CalibrationRecord:
    record = load_calibration(RESULTS, DEVICE)
    assert record is not None
    return record


def test_the_committed_calibration_claims_what_its_trials_show(committed: CalibrationRecord) -> None:
    shown = [(one.low_us, one.several_launches, one.false_regressions.total) for one in summary_of(committed).classes]
    assert [(one.low_us, one.several_launches, one.comparisons) for one in committed.note.effects] == shown
    assert sum(total for _, _, total in shown) == committed.note.comparisons > 0


def test_what_was_written_is_read_back_and_the_replaced_trials_go(tmp_path: Path, committed: CalibrationRecord) -> None:
    file = write_calibration(tmp_path, committed)
    assert load_calibration(tmp_path, DEVICE) == committed
    assert len(file.read_bytes()) < 20_000, "the long lists lie beside it"
    shorter = msgspec.structs.replace(committed, trials=committed.trials[:7])
    write_calibration(tmp_path, shorter)
    assert load_calibration(tmp_path, DEVICE) == shorter
    assert sorted(path.suffix for path in file.parent.iterdir()) == [".json", ".parquet"]


def old_form(results: Path, record: CalibrationRecord) -> dict[str, Any]:
    """Write `record` as an older fusebench did, every trial in the JSON file, without any launches, and return what was written."""
    stored: dict[str, Any] = json.loads(encode_record(msgspec.structs.replace(record, version=1)))
    for entry in (*stored["trials"], *stored["note"]["effects"]):
        entry.pop("launches", None)
        entry.pop("several_launches", None)
    file = calibration_file(results, DEVICE)
    file.parent.mkdir()
    file.write_text(json.dumps(stored))
    return stored


def test_a_calibration_that_says_nothing_of_launches_is_read_as_calls_of_one(tmp_path: Path, committed: CalibrationRecord) -> None:
    old_form(tmp_path, committed)
    record, note = load_calibration(tmp_path, DEVICE), load_note(tmp_path, DEVICE)
    assert record is not None
    assert {trial.launches for trial in record.trials} == {1}
    assert note == record.note
    assert {effect.several_launches for effect in record.note.effects} == {False}
    assert len(record.trials) == len(committed.trials)
    write_calibration(tmp_path, record)
    assert load_calibration(tmp_path, DEVICE) == record, "the next write stores it in today's form"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (None, "`tables` is None"),
        ("", "`tables` is ''"),
        ("../x.parquet", "expected the name"),
        ("gone.parquet", "gone.parquet: cannot be"),
    ],
)
def test_a_record_whose_trials_are_missing_is_refused_and_what_to_do_is_said(
    tmp_path: Path, committed: CalibrationRecord, tables: str | None, said: str
) -> None:
    file = write_calibration(tmp_path, committed)
    head = json.loads(file.read_text())
    file.write_text(json.dumps({**head, "tables": tables}))
    with pytest.raises(RunRecordError) as caught:
        load_calibration(tmp_path, DEVICE)
    assert said in str(caught.value)
    assert "restore it" in str(caught.value)
    assert load_note(tmp_path, DEVICE) == committed.note


def test_garbled_trials_are_refused(tmp_path: Path, committed: CalibrationRecord) -> None:
    file = write_calibration(tmp_path, committed)
    (tables,) = file.parent.glob("*.parquet")
    tables.write_bytes(tables.read_bytes()[:-100])
    with pytest.raises(RunRecordError, match="truncated or garbled"):
        load_calibration(tmp_path, DEVICE)
    with pytest.raises(RunRecordError, match="name another"):
        read_calibration(file, instead="name another")
    file.write_text('{"version": 2, "note": ' + "[" * 200_000)
    with pytest.raises(RunRecordError, match="not a calibration"):
        load_calibration(tmp_path, DEVICE)
