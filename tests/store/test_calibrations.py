"""Calibrations as they lie on disk."""

from __future__ import annotations

import json
from pathlib import Path

from fusebench.runner.calibrate.summary import summary_of
from fusebench.store.calibration_note import calibration_file, load_note
from fusebench.store.calibrations import load_calibration

DEVICE = "NVIDIA H200"
RESULTS = Path(__file__).parents[2] / "results"


def test_the_committed_calibration_claims_what_its_trials_show() -> None:
    record = load_calibration(RESULTS, DEVICE)
    assert record is not None
    shown = [(one.low_us, one.several_launches, one.false_regressions.total) for one in summary_of(record).classes]
    assert [(one.low_us, one.several_launches, one.comparisons) for one in record.note.effects] == shown
    assert sum(total for _, _, total in shown) == record.note.comparisons > 0


def test_a_calibration_that_says_nothing_of_launches_is_read_as_calls_of_one(tmp_path: Path) -> None:
    stored = json.loads(calibration_file(RESULTS, DEVICE).read_text())
    for entry in (*stored["trials"], *stored["note"]["effects"]):
        entry.pop("launches", None)
        entry.pop("several_launches", None)
    file = calibration_file(tmp_path, DEVICE)
    file.parent.mkdir()
    file.write_text(json.dumps(stored))
    record, note = load_calibration(tmp_path, DEVICE), load_note(tmp_path, DEVICE)
    assert record is not None
    assert {trial.launches for trial in record.trials} == {1}
    assert note == record.note
    assert {effect.several_launches for effect in record.note.effects} == {False}
