"""`fusebench run`: from the command line to a run folder, an exit code and one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome

from fusebench.runner.run.precision import LOOKS
from fusebench.runner.workers.protocol import Failure, Measured, TimeTask
from fusebench.schema import CacheState, ExitCode, Status
from fusebench.store.run_folder import read_run
from helpers import run_bench
from helpers.run_bench import QUICK, FakeWorkers, measured, only_run

Fusebench = Callable[..., Outcome]

project, workers = run_bench.project, run_bench.workers


@pytest.mark.usefixtures("project")
def test_options_reach_the_measurement(fusebench: Fusebench, workers: FakeWorkers) -> None:
    options = [
        "--replicates",
        "3",
        "--rounds",
        "7",
        "--cache",
        "warm",
        "--timer",
        "host",
        "--case",
        "even",
        "--budget",
        "1000",
        "--precision",
        "0.01",
    ]
    outcome = fusebench("run", "--op", "scale", "--device", "cpu", *options)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    (task,) = workers.measurements
    others = workers.asked_again
    assert len(others) == LOOKS[0] - 1, "a precision asks so many processes at least"
    assert {one.plan for one in others} == {task.plan}
    assert (task.plan.replicates, task.plan.rounds, task.plan.cache, task.plan.precision) == (3, 7, CacheState.WARM, 0.01)
    assert (task.timer, task.case.key, task.baseline) == ("host", "scale:even", "scale/split@1")
    assert task.seconds is not None
    assert 900 < task.seconds < 1000


@pytest.mark.usefixtures("project", "workers")
def test_a_run_is_shown_as_a_table_and_its_folder_is_named_last(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*QUICK)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert "2.00x" in outcome.stdout
    assert outcome.stdout.rstrip().splitlines()[-1] == f"run: {only_run(project)}"


@pytest.mark.usefixtures("workers")
def test_out_is_where_the_run_goes(fusebench: Fusebench, project: Path, tmp_path: Path) -> None:
    fusebench(*QUICK, "--out", str(tmp_path / "elsewhere"))
    (folder,) = (tmp_path / "elsewhere").iterdir()
    run = read_run(folder)
    assert run.complete
    assert all(kernel.file.startswith("kernels/") for kernel in run.kernels), "a record is read on other machines"
    assert not (project / "results").exists()


def test_a_timer_that_loses_records_is_exit_code_3_and_what_was_measured_is_kept(
    fusebench: Fusebench, project: Path, workers: FakeWorkers
) -> None:
    lost = Failure(status=Status.CRASHED, reason="records were dropped", unfit=True)
    workers.timed = lambda task: measured(task, 2.0) if task.case.name == "even" else lost
    outcome = fusebench(*QUICK)
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert "error: case scale:odd: records were dropped" in outcome.stderr
    run = read_run(only_run(project))
    assert (run.complete, run.exit_code) == (False, ExitCode.DEVICE_UNFIT)
    assert "case scale:odd: records were dropped" in run.warnings
    assert {result.case for result in run.results if result.status is Status.MEASURED} == {"even"}
    assert f"marked incomplete, in {only_run(project)}" in outcome.stderr


def test_a_fault_of_fusebench_keeps_what_was_measured(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    def faulty(task: TimeTask) -> Measured:
        if task.case.name == "odd":
            raise ZeroDivisionError("of our own making")
        return measured(task, 2.0)

    workers.timed = faulty
    outcome = fusebench(*QUICK)
    assert outcome.exit_code == ExitCode.FAULT
    assert f"kept, marked incomplete, in {only_run(project)}" in outcome.stderr
    run = read_run(only_run(project))
    assert (run.complete, run.exit_code) == (False, ExitCode.FAULT)
    assert "ended by a fault of fusebench: ZeroDivisionError: of our own making" in run.warnings
    assert {result.case for result in run.results if result.status is Status.MEASURED} == {"even"}


@pytest.mark.usefixtures("workers")
def test_a_fault_in_judging_keeps_the_whole_run_without_verdicts(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> None:
        raise ZeroDivisionError("of our own making")

    monkeypatch.setattr("fusebench.runner.run.strategy.judge_run", faulty)
    outcome = fusebench(*QUICK)
    assert outcome.exit_code == ExitCode.FAULT
    assert f"kept, without verdicts, in {only_run(project)}" in outcome.stderr
    run = read_run(only_run(project))
    assert (run.complete, run.exit_code) == (True, ExitCode.FAULT)
    assert all(result.verdict is None for result in run.results)


def test_a_run_that_was_interrupted_before_any_result_leaves_nothing(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    (project / "kernels" / "scale" / "fast.py").unlink()

    def interrupt(task: TimeTask) -> Measured:
        raise KeyboardInterrupt

    workers.timed = interrupt
    outcome = fusebench(*QUICK, "--case", "even")
    assert outcome.exit_code == 130
    assert not (project / "results").exists()


@pytest.mark.usefixtures("workers")
def test_a_kernel_file_that_does_not_load_is_exit_code_5_and_the_others_are_measured(fusebench: Fusebench, project: Path) -> None:
    (project / "kernels" / "scale" / "broken.py").write_text("def f(:\n")
    outcome = fusebench(*QUICK, "--json")
    assert outcome.exit_code == ExitCode.KERNEL_FAILED
    document = json.loads(outcome.stdout)
    assert document["exit_code"] == 5
    assert [warning for warning in document["warnings"] if "not loaded" in warning and "broken.py" in warning]
    assert {result["status"] for result in document["results"]} >= {"measured"}
    assert "warning: kernels/scale/broken.py: " in outcome.stderr


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timer", "hots"], "unknown timer 'hots'; did you mean 'host'?"),
        (["--timer", "cupti"], "--timer cupti times a GPU"),
        (["--kernel", "scale/plian@1"], "did you mean 'scale/plain@1'?"),
        (["--case", "evne"], "did you mean"),
        (["--replicates", "1"], "--replicates"),
        (["--budget", "0"], "--budget"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error_and_starts_nothing(
    fusebench: Fusebench, workers: FakeWorkers, project: Path, arguments: list[str], said: str
) -> None:
    outcome = fusebench(*QUICK, *arguments)
    assert (outcome.exit_code, outcome.stdout) == (ExitCode.USAGE, "")
    assert said in outcome.stderr
    assert workers.tasks == []
    assert not (project / "results").exists()


@pytest.mark.usefixtures("project", "workers")
def test_a_budget_is_held_against_the_seconds_of_the_run_before(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    enough = fusebench(*QUICK, "--budget", "1000", "--json")
    assert enough.exit_code == ExitCode.PASS, enough.output
    assert "of the budget of 1000 s" in enough.stderr
    assert "too small" not in enough.stderr
    monkeypatch.setattr("fusebench.runner.run.reckoning.Reckoning.total_s", 90.0)
    short = fusebench(*QUICK, "--budget", "60", "--json")
    assert "the budget of 60 s is too small" in short.stderr
    assert any("pass --budget 100" in text for text in read_run(Path(json.loads(short.stdout)["run"])).warnings)
