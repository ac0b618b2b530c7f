"""A record that was edited after it was written: every command that reads it says so, and the gate refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.schema import ExitCode
from fusebench.store.baselines import promote
from fusebench.store.run_folder import RUN_FILE

Fusebench = Callable[..., Any]


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
