"""`fusebench calibrate`: its options, and one whole calibration of the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.cli import calibrate_command
from fusebench.runner import subjects
from fusebench.stats import confirmation
from fusebench.stats.sequential import Plan

Fusebench = Callable[..., Any]


def test_the_whole_pipeline_on_a_cpu_and_what_reports_then_say(
    toy_project: Path, fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds long: three worker processes import torch, which is what a fresh process is."""
    monkeypatch.setattr(confirmation, "PROCESSES", 1)
    monkeypatch.setattr(subjects, "CPU_ELEMENTS", (2**12,))
    monkeypatch.setattr(calibrate_command, "TRUTH_REPLICATES", 4)
    result = fusebench("calibrate", "--device", "cpu", "--quick", "--identical", "2", "--planted", "1", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["comparisons"] == 4
    file = Path(document["file"])
    assert file.is_relative_to(toy_project / "results" / "calibration")
    stored = json.loads(file.read_text())
    assert {trial["place"]["planting"] for trial in stored["trials"]} == {"identical", "rows", "delay"}
    assert len(stored["components"]) == 2

    ran = fusebench("run", "--suite", "scale", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2")
    assert "of 4 equal kernels called slower" in ran.stdout, ran.output


@pytest.mark.usefixtures("toy_project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--built-in", "none"], "nothing to calibrate with"),
        (["--kernel", "x*"], "add --suite NAME or --op NAME"),
        (["--timer", "cupty"], "did you mean 'cupti'?"),
        (["--timer", "cuda_graph"], "times a GPU"),
        (["--suite", "scal"], "did you mean 'scale'?"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(fusebench: Fusebench, arguments: list[str], said: str) -> None:
    result = fusebench("calibrate", "--device", "cpu", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert not Path("results").exists()


def test_planted_slowdowns_lie_beyond_the_margin_that_passes() -> None:
    assert Plan().margin < min(calibrate_command.GPU_SLOWDOWNS)
