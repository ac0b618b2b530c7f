"""`fusebench ncu`: from the command line to a run folder and an exit code, with a script for Nsight Compute and a GPU that is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome

from fusebench.counters.capturing import PermissionDeniedError
from fusebench.counters.records import CaptureStatus
from fusebench.runner.count import strategy as counting
from fusebench.schema import ExitCode
from helpers import ncu_bench
from helpers.ncu_bench import SELECTION, add_kernel, only_run, record, statuses

Fusebench = Callable[..., Outcome]

project = ncu_bench.project


def test_the_projects_own_device_code_is_captured_and_kept(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    run = record(project)
    assert statuses(run) == dict.fromkeys(("scale/fast@2", "scale/twin@1", "scale/twin@2"), CaptureStatus.CAPTURED), "and not torch's split"
    assert (run.complete, run.metric_set, run.cache_control, run.clock_control) == (True, "full", "all", "none")
    assert run.ncu_version == "2025.3.1.0"
    assert run.environment.device_name == "NVIDIA H200"
    folder = only_run(project)
    reports = {"01_even_fast_v2.ncu-rep", "02_even_twin_v1.ncu-rep", "03_even_twin_v2.ncu-rep"}
    assert {file.name for file in folder.iterdir()} == {"ncu.json", "report.md", *reports}
    assert {capture.report for capture in run.captures} == reports
    assert folder.name.endswith("_ncu")
    assert f"run: {folder}" in outcome.stdout


def test_versions_stand_side_by_side_with_differences_and_words(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*SELECTION, "--kernel", "twin@*")
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    line = next(line for line in outcome.stdout.splitlines() if line.strip().startswith("registers per thread"))
    assert line.split()[3:6] == ["96", "72", "-25.0"]
    assert "registers" in outcome.stdout[outcome.stdout.index("scale/twin@1 on scale:even:") :], "and the reading, in words"
    report = (only_run(project) / "report.md").read_text()
    assert "-25.0 %" in report


@pytest.mark.usefixtures("project")
def test_a_kernel_named_with_its_op_needs_no_suite(fusebench: Fusebench) -> None:
    outcome = fusebench("ncu", "--kernel", "scale/twin@2", "--case", "even", "--json")
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    assert [capture["kernel"] for capture in json.loads(outcome.stdout)["record"]["captures"]] == ["scale/twin@2"]


@pytest.mark.usefixtures("project")
def test_every_figure_of_a_single_case_is_on_the_terminal_once(fusebench: Fusebench) -> None:
    def lines(figure: str, *arguments: str) -> list[str]:
        outcome = fusebench(*arguments)
        assert outcome.exit_code == ExitCode.PASS, outcome.stderr
        return [line for line in outcome.stdout.splitlines() if line.strip().startswith(figure)]

    assert [line.split()[-1] for line in lines("registers per thread", *SELECTION, "--kernel", "fast")] == ["96"]
    assert len(lines("registers per thread", *SELECTION, "--kernel", "twin")) == 1, "in the table of differences"
    assert len(lines("registers per thread", *SELECTION)) == 2, "there, and in one of the kernel that has no other version"
    assert lines("registers per thread", "ncu", "--suite", "scale", "--suite", "models/toy", "--case", "even", "--kernel", "fast") == []


def test_json_is_one_document_with_the_record_the_differences_and_the_reading(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*SELECTION, "--kernel", "twin", "--set", "quick", "--json")
    document = json.loads(outcome.stdout)
    assert document.keys() == {"run", "exit_code", "record", "diffs", "readings"}
    assert document["run"] == str(only_run(project))
    (diff,) = document["diffs"]
    changes = {change["figure"]: change for change in diff["changes"]}
    assert changes["registers per thread"]["percent"] == pytest.approx(-25)
    assert changes["registers per thread"]["improved"] is True
    assert all(reading["traffic"] for reading in document["readings"])
    assert document["record"]["metric_set"] == "quick"


def test_what_is_declined_is_on_record_with_its_reason(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench("ncu", "--suite", "scale", "--case", "odd", "--kernel", "fast")
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    (capture,) = record(project).captures
    assert (capture.status, capture.reason) == (CaptureStatus.UNSUPPORTED, "size 4097 is no multiple of 4")


def test_a_failure_is_exit_code_5_and_leaves_the_others_alone(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    fake_ncu.behave(kernels={"scale/twin@1": {"raises": "RuntimeError: planted"}, "scale/fast@2": {"no_launch": True}})
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.KERNEL_FAILED
    run = record(project)
    assert statuses(run) == {
        "scale/fast@2": CaptureStatus.NO_LAUNCH,
        "scale/twin@1": CaptureStatus.FAILED,
        "scale/twin@2": CaptureStatus.CAPTURED,
    }
    assert "RuntimeError: planted" in outcome.stderr
    assert "RuntimeError: planted" in outcome.stdout
    assert run.complete


def test_a_kernel_file_that_does_not_load_is_exit_code_5(fusebench: Fusebench, project: Path) -> None:
    (project / "kernels" / "scale" / "broken.py").write_text("def f(:\n")
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.KERNEL_FAILED
    assert any("not loaded" in warning and "broken.py" in warning for warning in record(project).warnings)


def test_ctrl_c_keeps_what_is_there(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = counting.capture

    def interrupted(case: Any, kernel: str, **options: Any) -> Any:
        if kernel == "scale/twin@2":
            raise KeyboardInterrupt
        return captured(case, kernel, **options)

    monkeypatch.setattr(counting, "capture", interrupted)
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == 130
    assert f"marked incomplete, in {only_run(project)}" in outcome.stderr
    run = record(project)
    assert not run.complete
    assert set(statuses(run)) == {"scale/fast@2", "scale/twin@1"}


def test_an_error_on_the_way_keeps_what_is_there_and_is_on_record(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = counting.capture

    def refused(case: Any, kernel: str, **options: Any) -> Any:
        if kernel == "scale/twin@1":
            raise PermissionDeniedError("planted refusal")
        return captured(case, kernel, **options)

    monkeypatch.setattr(counting, "capture", refused)
    outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, "error: planted refusal" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)
    run = record(project)
    assert (run.complete, set(statuses(run)), run.warnings) == (False, {"scale/fast@2"}, ("planted refusal",))


def test_named_metrics_are_checked_before_anything_is_captured(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    outcome = fusebench(*SELECTION, "--metrics", "dram__bytes_raed.sum")
    assert outcome.exit_code == ExitCode.USAGE
    assert "did you mean 'dram__bytes_read'?" in outcome.stderr
    assert not [call for call in fake_ncu.calls if "--export" in call["arguments"]]
    assert not (project / "results").exists()


def test_named_metrics_are_shown_with_their_values(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*SELECTION, "--kernel", "twin@1", "--metrics", "smsp__inst_executed.sum,lts__t_requests.sum")
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    line = next(line for line in outcome.stdout.splitlines() if "smsp__inst_executed.sum" in line)
    assert line.endswith("11,894,784")
    run = record(project)
    assert (run.metric_set, run.metrics) == ("named", ("smsp__inst_executed.sum", "lts__t_requests.sum"))
    assert "no value of lts__t_requests.sum" in run.warnings[0]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "quick", "--metrics", "dram__bytes_read.sum"], "pass one of them"),
        (["--metrics", ","], "no name given"),
        (["--metrics", "group:memory"], "groups and patterns"),
        (["--base", "main", "--against", "latest"], "pass one of them"),
        (["--base-kernels", "nowhere"], "no such folder"),
        (["--against", "latest"], "make one with `fusebench ncu`"),
        (["--kernel", "scale/twn@1"], "did you mean 'scale/twin@1'?"),
        (["--set", "all"], "--set"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(fusebench: Fusebench, project: Path, arguments: list[str], said: str) -> None:
    outcome = fusebench(*SELECTION, *arguments)
    assert outcome.exit_code == ExitCode.USAGE
    assert said in outcome.stderr
    assert not (project / "results").exists()


@pytest.mark.usefixtures("project")
def test_the_profiled_process_really_runs(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    """Two processes that import torch: 3 to 5 s each."""
    fake_ncu.behave(run_child=True)
    add_kernel(project, "dies", body="os._exit(7)")
    outcome = fusebench(*SELECTION, "--kernel", "[fd][ai]*")
    assert outcome.exit_code == ExitCode.KERNEL_FAILED, outcome.output
    found = {capture.kernel: capture for capture in record(project).captures}
    assert found["scale/fast@2"].status is CaptureStatus.CAPTURED
    assert found["scale/dies@1"].status is CaptureStatus.FAILED
    assert "ended while compiling and calling it for the first time" in found["scale/dies@1"].reason
