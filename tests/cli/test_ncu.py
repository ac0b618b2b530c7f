"""`fusebench ncu`: from the command line to a run folder and an exit code, with a script for Nsight Compute and a GPU that is none."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome

from fusebench.cli import ncu_device
from fusebench.counters.capturing import PermissionDeniedError
from fusebench.counters.records import CaptureStatus, CounterRun
from fusebench.device import device_lock, resolve_device
from fusebench.device import nvml as nvml_backend
from fusebench.device.readings import GpuProcess, GpuUnavailableError
from fusebench.runner import counting
from fusebench.schema import ExitCode
from fusebench.store.counter_folder import read_counters

Fusebench = Callable[..., Outcome]
TOY_PROJECT = Path(__file__).parents[1] / "toy_project"
SELECTION = ["ncu", "--suite", "scale", "--case", "even"]

KERNEL = """
import os

from fusebench import kernel


@kernel("scale", "{name}", version={version}, role="fused", language="cuda")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""


def add_kernel(project: Path, name: str, *, version: int = 1, body: str = "pass") -> None:
    text = KERNEL.replace("{name}", name).replace("{version}", str(version)).replace("{body}", body)
    (project / "kernels" / "scale" / f"{name}_v{version}.py").write_text(text)


@pytest.fixture
def project(toy_project: Path, with_gpu: Any, fake_ncu: Any) -> Path:
    """The toy project with two versions of `scale/twin`, on a machine with a GPU and the script."""
    add_kernel(toy_project, "twin", version=1)
    add_kernel(toy_project, "twin", version=2)
    fake_ncu.behave(kernels={"scale/twin@2": {"rows": [1]}})
    return toy_project


def only_run(project: Path) -> Path:
    (folder,) = (project / "results" / "runs").iterdir()
    return folder


def record(project: Path) -> CounterRun:
    return read_counters(only_run(project))


def statuses(run: CounterRun) -> dict[str, CaptureStatus]:
    return {capture.kernel: capture.status for capture in run.captures}


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
    assert (capture.status, capture.reason) == (CaptureStatus.UNSUPPORTED, "size 7 is no multiple of 4")


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


def test_a_refusal_by_the_driver_is_exit_code_3_and_leaves_nothing(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    fake_ncu.behave(forbidden=True)
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert "ERR_NVGPUCTRPERM" in outcome.stderr
    assert "NVreg_RestrictProfilingToAdminUsers=0" in outcome.stderr
    assert not (project / "results").exists()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("named", ["missing", "old"])
def test_an_ncu_that_is_missing_or_old_is_exit_code_3(
    fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, fake_ncu: Any, named: str
) -> None:
    if named == "missing":
        monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    else:
        fake_ncu.behave(version="2023.1.0.0")
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert ("no program that can be run" if named == "missing" else "2023.1.0.0") in outcome.stderr


@pytest.mark.usefixtures("project")
def test_a_busy_or_locked_device_is_exit_code_3(fusebench: Fusebench, with_gpu: Any, fake_ncu: Any) -> None:
    with device_lock(resolve_device("cuda")):
        outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, "in use by another fusebench run" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)
    with_gpu(processes=(GpuProcess(pid=42, name="train", used_bytes=2**30, kind="compute"),))
    outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, "train (pid 42" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)
    assert all(call["arguments"] == ["--version"] for call in fake_ncu.calls), "nothing was captured"


@pytest.mark.usefixtures("project")
def test_a_mistake_on_the_command_line_is_told_before_what_the_machine_lacks(
    fusebench: Fusebench, with_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(processes=(GpuProcess(pid=42, name="train", used_bytes=2**30, kind="compute"),))
    monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    outcome = fusebench("ncu", "--suite", "scael")
    assert (outcome.exit_code, "did you mean 'scale'?" in outcome.stderr) == (ExitCode.USAGE, True)


@pytest.mark.usefixtures("project")
def test_a_device_seen_idle_while_the_kernels_loaded_is_not_looked_at_again(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    look = ncu_device.idle_findings
    monkeypatch.setattr(ncu_device, "idle_findings", lambda *one: looks.append(one) or look(*one))
    monkeypatch.setattr(ncu_device, "require_idle", lambda *_, **__: pytest.fail("looked at again"))
    outcome = fusebench(*SELECTION, "--kernel", "twin@1")
    assert (outcome.exit_code, len(looks)) == (ExitCode.PASS, 1), outcome.output


@pytest.mark.usefixtures("project")
def test_without_a_gpu_it_is_exit_code_3(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = fusebench(*SELECTION, "--device", "cpu")
    assert (outcome.exit_code, "choose one with --device cuda:N" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)

    def absent() -> None:
        raise GpuUnavailableError("no NVIDIA driver library is installed", "install the driver")

    monkeypatch.setattr(nvml_backend, "open_monitor", absent)
    outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, "no NVIDIA driver library is installed; install the driver\n" in outcome.stderr) == (3, True)


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


def test_a_stored_run_is_shown_again_on_any_machine(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fusebench(*SELECTION).stdout
    monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    monkeypatch.setattr(nvml_backend, "open_monitor", lambda: pytest.fail("no GPU is asked for"))
    shown = fusebench("ncu", "--from", "latest")
    assert (shown.exit_code, f"{shown.stdout}run: {only_run(project)}\n") == (ExitCode.PASS, first)
    assert len(list((project / "results" / "runs").iterdir())) == 1, "nothing is written"
    report = fusebench("report", str(only_run(project)))
    assert (report.exit_code, report.stdout) == (ExitCode.PASS, (only_run(project) / "report.md").read_text())
    by_id = fusebench("report", record(project).id)
    assert by_id.stdout == report.stdout
    assert fusebench("report", record(project).id, "--format", "html").exit_code == ExitCode.USAGE


def test_further_metrics_are_read_from_stored_reports(fusebench: Fusebench, project: Path) -> None:
    assert fusebench(*SELECTION, "--set", "quick").exit_code == ExitCode.PASS
    name = "smsp__warps_eligible.avg.per_cycle_active"
    shown = fusebench("ncu", "--from", "latest", "--metrics", name)
    assert shown.exit_code == ExitCode.PASS, shown.stderr
    assert sum(name in line for line in shown.stdout.splitlines()) == 3
    one = fusebench("ncu", "--from", str(only_run(project) / "02_even_twin_v1.ncu-rep"), "--json")
    captures = json.loads(one.stdout)["record"]["captures"]
    assert [capture["kernel"] for capture in captures] == ["scale/twin@1"]
    assert name in captures[0]["launches"][0]["metrics"], "the full set, from the report"


def test_a_report_file_that_is_none_is_refused(fusebench: Fusebench, project: Path) -> None:
    (project / "made_up.ncu-rep").write_text("no report")
    outcome = fusebench("ncu", "--from", "made_up.ncu-rep")
    assert (outcome.exit_code, "not an Nsight Compute report" in outcome.stderr) == (ExitCode.USAGE, True)
    fusebench(*SELECTION, "--kernel", "twin@1")
    shutil.copy(only_run(project) / "01_even_twin_v1.ncu-rep", project / "stray.ncu-rep")
    outcome = fusebench("ncu", "--from", "stray.ncu-rep")
    assert (outcome.exit_code, "no ncu.json lies beside it" in outcome.stderr) == (ExitCode.USAGE, True)
    outcome = fusebench("ncu", "--from", "nowhere/at_all")
    assert (outcome.exit_code, "expected the folder of a `fusebench ncu`" in outcome.stderr) == (ExitCode.USAGE, True)


def test_an_earlier_run_is_put_beside(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    assert fusebench(*SELECTION, "--kernel", "twin@2").exit_code == ExitCode.PASS
    first = only_run(project)
    fake_ncu.behave(kernels={"scale/twin@2": {"rows": [0]}})
    outcome = fusebench(*SELECTION, "--kernel", "twin@2", "--against", str(first), "--json")
    document = json.loads(outcome.stdout)
    (diff,) = document["diffs"]
    assert (diff["before"], diff["after"]) == ("scale/twin@2 (base)", "scale/twin@2")
    registers = next(change for change in diff["changes"] if change["figure"] == "registers per thread")
    assert (registers["before"], registers["after"]) == (72, 96)
    assert document["record"]["base"].startswith(f"run {read_counters(first).id} of ")
    stored = fusebench("ncu", "--from", Path(document["run"]).name)
    assert "+33.3 %" in stored.stdout, "the other side is part of the record"


def test_a_folder_of_kernels_is_the_other_side(fusebench: Fusebench, project: Path, fake_ncu: Any, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(project / "kernels", old, ignore=shutil.ignore_patterns("__pycache__"))
    add_kernel(project, "twin", version=2, body="'changed'")
    add_kernel(project, "fresh")
    outcome = fusebench(*SELECTION, "--base-kernels", str(old))
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    run = record(project)
    assert [(capture.kernel, capture.side) for capture in run.captures] == [
        ("scale/fast@2", ""),
        ("scale/fresh@1", ""),
        ("scale/twin@1", ""),
        ("scale/twin@2", ""),
        ("scale/twin@2", "base"),
    ]
    assert any("scale/twin@1 is made of the same files on both sides" in warning for warning in run.warnings)
    assert any("scale/fresh@1" in warning and "new" in warning for warning in run.warnings)
    assert run.base == f"folder {old}"
    assert "base: folder" in outcome.stdout


def test_a_commit_is_the_other_side(fusebench: Fusebench, project: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)

    git("init")
    git("add", "-A")
    git("commit", "-m", "first")
    add_kernel(project, "twin", version=2, body="'changed'")
    outcome = fusebench(*SELECTION, "--kernel", "twin@2", "--base", "HEAD")
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    run = record(project)
    assert [capture.side for capture in run.captures] == ["", "base"]
    assert run.base.startswith("commit ")


# End to end, with the real process under the script.


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
