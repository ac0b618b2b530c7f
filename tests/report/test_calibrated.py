"""What every report says of the verdicts themselves."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from rich.console import Console

from fusebench.errors import RunRecordError
from fusebench.report.html.page import html_report
from fusebench.report.run.document import run_document
from fusebench.report.run.markdown import markdown_report
from fusebench.report.run.pages import suite_pages
from fusebench.report.run.summary import calibration_line, calibration_words
from fusebench.report.run.table import print_run
from fusebench.schema import CacheState, CalibrationNote, Run, VisibleEffect
from fusebench.store.calibration_note import calibration_file, load_note, with_calibration
from fusebench.store.record_files import encode_record

NOTE = CalibrationNote(
    device_name="NVIDIA H200",
    created="2026-08-01",
    timer="cupti",
    cache=CacheState.COLD,
    comparisons=1040,
    false_regressions=0,
    false_regression_high=0.0035,
    effects=(
        VisibleEffect(low_us=0.0, high_us=3.0, comparisons=200, smallest=None, largest_injected=0.05),
        VisibleEffect(low_us=3.0, high_us=10.0, comparisons=300, smallest=0.0201),
        VisibleEffect(low_us=50.0, high_us=math.inf, comparisons=300, smallest=0.0098),
    ),
)
SAID = "0 of 1040 A/A comparisons called slower (95 % interval up to 0.35 %)"


def forms(run: Run) -> list[str]:
    printed = io.StringIO()
    print_run(run, Console(file=printed, width=400))
    return [
        printed.getvalue(),
        markdown_report(run),
        html_report(run),
        suite_pages(run)["README.md"].decode(),
        run_document(run, None)["calibration"],
    ]


def test_every_form_names_rate_and_effect(synthetic: ModuleType) -> None:
    for text in forms(synthetic.make_run(calibration=NOTE)):
        assert SAID in text
        assert "under 3 us: more than 5.00 %, 3 to 10 us: 2.01 %, 50 us and more: 0.98 %" in text


def test_calls_of_several_launches_have_figures_of_their_own() -> None:
    several = VisibleEffect(low_us=3.0, high_us=10.0, comparisons=100, smallest=0.05, several_launches=True)
    words = calibration_words(msgspec.structs.replace(NOTE, effects=(*NOTE.effects[1:], several)), "cuda", "cupti", CacheState.COLD)
    assert words.endswith(
        "; smallest slowdown found with 95 % probability in calls of one launch: 3 to 10 us: 2.01 %, 50 us and more: 0.98 %"
        "; in calls of several launches: 3 to 10 us: 5.00 %"
    )
    alone = calibration_words(msgspec.structs.replace(NOTE, effects=(several,)), "cuda", "cupti", CacheState.COLD)
    assert alone.endswith(
        "(95 % interval up to 0.35 %); smallest slowdown found with 95 % probability in calls of several launches: 3 to 10 us: 5.00 %"
    )
    none = calibration_words(msgspec.structs.replace(NOTE, effects=()), "cuda", "cupti", CacheState.COLD)
    assert none.endswith("(95 % interval up to 0.35 %)")


def test_notes_of_older_records_tell_no_calls_apart() -> None:
    stored = json.loads(encode_record(NOTE))
    for effect in stored["effects"]:
        del effect["several_launches"]
    assert msgspec.convert(stored, CalibrationNote, strict=False) == NOTE


def test_every_form_says_where_there_is_none(synthetic: ModuleType) -> None:
    for text in forms(synthetic.make_run()):
        assert "not calibrated on this GPU" in text


@pytest.mark.parametrize(("timer", "cache"), [("cuda_graph", CacheState.COLD), ("cupti", CacheState.WARM)])
def test_a_calibration_of_another_timer_or_cache_state_is_none(timer: str, cache: CacheState) -> None:
    words = calibration_words(NOTE, "cuda", timer, cache)
    assert words.startswith(f"not calibrated on this GPU with timer {timer} and {cache} cache")
    assert SAID not in words


def test_a_run_keeps_the_calibration_that_it_was_judged_under(synthetic: ModuleType, tmp_path: Path) -> None:
    run = synthetic.make_run(calibration=NOTE)
    assert with_calibration(run, tmp_path) is run
    assert "not calibrated" in calibration_line(with_calibration(synthetic.make_run(), tmp_path))


@pytest.mark.parametrize(
    ("content", "said"), [('{"version": 9}', "version 9 is newer"), ('{"version": 1', "not a calibration"), ('{"version": 1}', "note")]
)
def test_a_calibration_that_cannot_be_read_is_an_error_not_a_missing_one(tmp_path: Path, content: str, said: str) -> None:
    file = calibration_file(tmp_path, "NVIDIA H200")
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(RunRecordError, match=said):
        load_note(tmp_path, "NVIDIA H200")
