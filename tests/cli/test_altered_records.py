"""A record that was edited after it was written: every command that reads it says so, and the gate refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from fusebench.config import find_project
from fusebench.schema import ExitCode
from fusebench.store.baselines import promote
from fusebench.store.calibrations import read_calibration, write_calibration
from fusebench.store.comparison_folder import keep_comparison
from fusebench.store.counter_folder import keep_counters
from fusebench.store.finding import runs_folder
from fusebench.store.run_folder import RUN_FILE
from helpers.synthetic_records import comparison, counters

pytestmark = pytest.mark.usefixtures("compressed_tables")
Fusebench = Callable[..., Any]
CALIBRATION = Path(__file__).parents[2] / "results" / "calibration" / "nvidia_h200.json"


@pytest.fixture
def runs(keep: Callable[..., Path], project_folder: Path) -> tuple[Path, Path, Path]:
    """The folders of two runs of the same figures, and of the baseline that is made of the first."""
    first = keep(run_id="first")
    return first, keep(run_id="second"), promote(first, project_folder / "results")


def edit(folder: Path) -> str:
    file = folder / RUN_FILE
    file.write_text(file.read_text().replace('"cupti"', '"cuda_events"'))
    return f"was altered after it was written: run.json does not fit its seal ({folder}); restore it from a copy, or measure again\n"


def test_what_was_not_edited_is_judged_without_a_word(fusebench: Fusebench, runs: tuple[Path, Path, Path]) -> None:
    for command in (["gate", "second"], ["compare", "first", "second"], ["report", "second"], ["history"]):
        outcome = fusebench(*command)
        assert (outcome.exit_code, outcome.stderr) == (ExitCode.PASS, ""), command


@pytest.mark.parametrize(("place", "what"), [(1, "run second"), (2, "baseline first")])
def test_a_gate_refuses_an_altered_record_unless_told_otherwise(
    fusebench: Fusebench, runs: tuple[Path, Path, Path], place: int, what: str
) -> None:
    edit(runs[place])
    refused = fusebench("gate", "second")
    assert refused.exit_code == ExitCode.USAGE
    assert f"{what} was altered after it was written: run.json does not fit its seal" in refused.stderr
    assert "--allow-altered" in refused.stderr
    judged = fusebench("gate", "second", "--allow-altered")
    assert f"warning: {what} was altered after it was written, and is judged all the same" in judged.stderr
    assert judged.exit_code == ExitCode.UNDECIDED, "times of another timer are incomparable"


def test_those_who_show_an_altered_record_say_so(fusebench: Fusebench, runs: tuple[Path, Path, Path]) -> None:
    said = edit(runs[1])
    for command in (["compare", "first", "second"], ["report", "second"]):
        outcome = fusebench(*command)
        assert (outcome.exit_code, outcome.stderr) == (ExitCode.PASS, f"warning: run second {said}"), command
    assert f"warning: {runs[1]} was altered" in fusebench("history").stderr
    edit(runs[2])
    assert "it was altered after it was written" in fusebench("baseline", "show").stdout


def test_promoting_an_altered_record_needs_force(fusebench: Fusebench, runs: tuple[Path, Path, Path]) -> None:
    edit(runs[1])
    refused = fusebench("baseline", "promote", "second", "--reason", "a test")
    assert refused.exit_code == ExitCode.USAGE
    assert "it was altered after it was written: run.json does not fit its seal" in refused.stderr
    forced = fusebench("baseline", "promote", "second", "--force", "--reason", "a test")
    assert forced.exit_code == ExitCode.PASS, forced.output
    assert "warning: promoted although it was altered" in forced.stderr


def test_a_record_of_an_older_fusebench_is_judged_and_said_to_have_no_seal(fusebench: Fusebench, runs: tuple[Path, Path, Path]) -> None:
    file = runs[2] / RUN_FILE
    file.write_text(file.read_text().replace('"seal"', '"earlier"'))
    outcome = fusebench("gate", "second")
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (ExitCode.PASS, 1)
    assert outcome.stderr.startswith("note: not sealed, because an older fusebench wrote it")
    assert outcome.stderr.endswith("baseline first\n")


@pytest.fixture
def calibration(project_folder: Path) -> Path:
    record = read_calibration(CALIBRATION)
    assert record is not None
    return write_calibration(project_folder / "results", record)


def test_an_altered_calibration_is_told_by_all_that_print_it_and_joined_with_none(
    fusebench: Fusebench, runs: tuple[Path, Path, Path], calibration: Path
) -> None:
    commands = (["gate", "second"], ["report", "second"])
    assert all("altered" not in fusebench(*command).stderr for command in commands)
    calibration.write_text(calibration.read_text().replace('"false_regressions": ', '"false_regressions": 1', 1))
    said = f"was altered after it was written: nvidia_h200.json does not fit its seal ({calibration}); restore it from a copy"
    for command in commands:
        assert f"warning: the calibration of NVIDIA H200 {said}" in fusebench(*command).stderr, command
    refused = fusebench("calibrate", "--join", str(CALIBRATION))
    assert refused.exit_code == ExitCode.USAGE
    assert "nvidia_h200.json does not fit its seal; nothing was changed: restore it from a copy" in refused.stderr


def test_altered_trials_of_a_calibration_are_joined_with_none(fusebench: Fusebench, calibration: Path) -> None:
    (trials,) = calibration.parent.glob("*.parquet")
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(trials), trials, compression="none")
    refused = fusebench("calibrate", "--join", str(calibration))
    assert refused.exit_code == ExitCode.USAGE
    assert f"{trials.name} does not fit its seal" in refused.stderr


@pytest.mark.parametrize("name", ["ab.json", "samples.parquet"])
def test_an_altered_comparison_is_told_by_its_report(fusebench: Fusebench, project_folder: Path, name: str) -> None:
    folder = keep_comparison(runs_folder_of(project_folder), comparison(), [])
    assert fusebench("report", str(folder)).stderr == ""
    change(folder / name)
    assert f"comparison abcd1234 was altered after it was written: {name} does not fit its seal" in fusebench("report", str(folder)).stderr


@pytest.mark.parametrize("name", ["ncu.json", "01.ncu-rep"])
def test_altered_counters_are_told_by_all_that_show_them(fusebench: Fusebench, project_folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "01.ncu-rep").write_bytes(b"NVR")
    folder = keep_counters(runs_folder_of(project_folder), counters(), tmp_path)
    commands = (["report", str(folder)], ["ncu", "--from", str(folder)], ["ncu", "--from", str(folder), "--against", str(folder)])
    assert all("altered" not in fusebench(*command).output for command in commands)
    change(folder / name)
    for command in commands:
        assert f"run abcd1234 was altered after it was written: {name} does not fit its seal" in fusebench(*command).stderr, command


def runs_folder_of(project_folder: Path) -> Path:
    return runs_folder(find_project(project_folder))


def change(file: Path) -> None:
    """Another figure in a JSON file, another byte in any other."""
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"complete": true', b'"complete": false') if file.suffix == ".json" else content + b" ")
    assert file.read_bytes() != content
