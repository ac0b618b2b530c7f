"""`fusebench run`: from the command line to a run folder, an exit code and one JSON document."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import Result as Outcome

from fusebench.runner.messages import Checked, CheckTask, Failure, Measured, MeasureTask
from fusebench.runner.process import WorkerProcess
from fusebench.schema import Accuracy, CacheState, ExitCode, Run, Sample, Status
from fusebench.store.run_folder import read_run, read_samples

Fusebench = Callable[..., Outcome]
TOY_PROJECT = Path(__file__).parents[1] / "toy_project"

KERNEL = """
import os
import time

from fusebench import kernel


@kernel("scale", "{name}", version=1, role="fused", language="torch")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""
QUICK = ["run", "--suite", "scale", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2"]
"""The smallest run there can be."""


def add_kernel(project: Path, name: str, body: str = "pass") -> None:
    (project / "kernels" / "scale" / f"{name}.py").write_text(KERNEL.replace("{name}", name).replace("{body}", body))


@pytest.fixture
def project(toy_project: Path) -> Path:
    """The toy project with `scale/plain@1`, which runs on a CPU."""
    add_kernel(toy_project, "plain")
    return toy_project


class FakeWorkers:
    """Answers for the worker processes."""

    def __init__(self) -> None:
        self.tasks: list[CheckTask | MeasureTask] = []
        self.timed: Callable[[MeasureTask], Measured | Failure] = lambda task: measured(task, 2.0)

    def ask(self, task: CheckTask | MeasureTask, on_progress: Any = None) -> Checked | Measured | Failure:
        self.tasks.append(task)
        if isinstance(task, MeasureTask):
            return self.timed(task)
        accuracy = Accuracy(
            passed=True, contract="close(1.5x split)", rms_error=0.0, max_error=0.0, mean_error=0.0, split_rms_error=0.0,
            split_max_error=0.0, equal_to_split=1.0, within_loose_tolerance=True, draws=1, elements=10**9, seed=1,
        )  # fmt: skip
        return Checked(accuracy=accuracy)

    @property
    def measurements(self) -> list[MeasureTask]:
        return [task for task in self.tasks if isinstance(task, MeasureTask)]


def measured(task: MeasureTask, plain_us: float) -> Measured:
    times = {"scale/plain@1": plain_us}
    samples = [
        Sample(case=task.case.key, arm=arm, replicate=replicate, round=0, position=0, span_ns=span, busy_ns=span, kernels=1)
        for arm in ("copy", "stream", "control", *task.kernels)
        for replicate in range(task.plan.replicates)
        for span in (round(1000 * times.get(arm, 4.0)) + replicate,)
    ]
    return Measured(
        samples=samples, host_us={}, extra_memory_bytes={}, timer="host", timer_fallback="", warm_up={}, seconds=0.1, cut_short=False,
        retried_replicates=0,
    )  # fmt: skip


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fake = FakeWorkers()
    monkeypatch.setattr(WorkerProcess, "ask", lambda self, task, on_progress=None: fake.ask(task, on_progress))
    return fake


def only_run(project: Path) -> Path:
    (folder,) = (project / "results" / "runs").iterdir()
    return folder


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
    task, *others = workers.measurements
    assert len(others) == 3, "a precision asks four processes at least"
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


def test_a_slower_kernel_is_a_regression_against_the_promoted_run(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    assert fusebench("baseline", "promote", str(only_run(project)), "--force").exit_code == 0
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    workers.timed = lambda task: measured(task, 2.8)
    slower = fusebench(*QUICK, "--json")
    assert slower.exit_code == ExitCode.REGRESSION
    verdicts = {(result["case"], result["kernel"]): result["verdict"] for result in json.loads(slower.stdout)["results"]}
    assert verdicts["even", "scale/plain@1"] == "regression"
    assert verdicts["even", "scale/split@1"] == "pass"
    assert fusebench(*QUICK, "--margin", "0.9").exit_code == ExitCode.PASS


def gated(fusebench: Fusebench, *arguments: str) -> tuple[Outcome, Path, Outcome]:
    """A run, its folder and its gate; `latest` would not do, since two runs of one second are equally new."""
    run = fusebench(*QUICK, *arguments)
    folder = run.stdout.rstrip().rpartition("run: ")[2]
    return run, Path(folder), fusebench("gate", folder)


@pytest.fixture
def against_the_whole_suite(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> FakeWorkers:
    """A baseline of every case and kernel, and workers for the runs that are held against it."""
    add_kernel(project, "other")
    assert fusebench(*QUICK).exit_code == ExitCode.PASS
    assert fusebench("baseline", "promote", str(only_run(project)), "--force").exit_code == 0
    return workers


@pytest.mark.usefixtures("against_the_whole_suite")
@pytest.mark.parametrize("glob", ["even", "e*", "scale:even"])
def test_a_run_of_one_case_and_kernel_passes_the_gate_of_the_whole_suite(fusebench: Fusebench, glob: str) -> None:
    run, folder, gate = gated(fusebench, "--case", glob, "--kernel", "plain@1")
    assert (run.exit_code, "has shrunk" in run.stdout) == (ExitCode.PASS, False), run.output
    assert gate.exit_code == ExitCode.PASS, gate.output
    assert f"only the cases '{glob}' were asked for, and are judged\n" in gate.stdout
    assert "only the kernels 'plain@1' and their baselines were asked for, and are judged\n" in gate.stdout
    assert "not selected by this run, and not judged: scale:odd\n" in gate.stdout
    document = json.loads(fusebench("gate", str(folder), "--json").stdout)
    assert (document["not_selected"], document["not_selected_cases"], document["shrunken"]) == ([], ["scale:odd"], [])
    assert {(row["case"], row["kernel"]) for row in document["judgements"]} == {("even", "scale/plain@1"), ("even", "scale/split@1")}


def test_a_regression_of_the_one_case_that_was_asked_for_is_found(fusebench: Fusebench, against_the_whole_suite: FakeWorkers) -> None:
    against_the_whole_suite.timed = lambda task: measured(task, 2.8)
    run, _, gate = gated(fusebench, "--case", "even")
    assert (run.exit_code, gate.exit_code) == (ExitCode.REGRESSION, ExitCode.REGRESSION)


@pytest.mark.usefixtures("against_the_whole_suite")
@pytest.mark.parametrize("arguments", [[], ["--case", "*"], ["--case", "scale:*"], ["--op", "scale"]])
def test_a_case_that_was_asked_for_and_is_gone_is_a_shrunken_suite(fusebench: Fusebench, project: Path, arguments: list[str]) -> None:
    suite = project / "suites" / "scale.toml"
    suite.write_text(suite.read_text().replace('"odd"', '"strange"'))
    run, folder, gate = gated(fusebench, *arguments)
    assert "suite scale has shrunk" in run.stdout
    assert (gate.exit_code, "1 cases are gone: odd" in gate.stdout) == (ExitCode.UNDECIDED, True), gate.output
    record = read_run(folder)
    asked_for = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (record.selected_cases, record.selected_op) == (asked_for.get("--case"), asked_for.get("--op"))
    assert ("only cases of the op 'scale' were asked for, and are judged\n" in gate.stdout) == ("--op" in arguments)


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


def test_a_run_that_was_interrupted_before_any_result_leaves_nothing(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    (project / "kernels" / "scale" / "fast.py").unlink()

    def interrupt(task: MeasureTask) -> Measured:
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


# End to end, with real processes.


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fusebench", *arguments]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run with a kernel that prints, one that is wrong and one that takes its process down, as a shell would start it."""
    project = tmp_path_factory.mktemp("end_to_end") / "project"
    shutil.copytree(TOY_PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    add_kernel(project, "prints", "print('a word'); os.write(1, b'another word\\n')")
    add_kernel(project, "wrong", "x.add_(0.25)")
    add_kernel(project, "exits", "os._exit(7)")
    environment = os.environ | {"FUSEBENCH_LOCK_DIR": str(project.parent / "locks")}
    arguments = command(*QUICK, "--case", "even", "--json")
    return project, subprocess.run(arguments, cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False)


Finished = tuple[Path, subprocess.CompletedProcess[str]]


def test_stdout_is_exactly_one_json_document_whatever_kernels_print(finished: Finished) -> None:
    _, process = finished
    document = json.loads(process.stdout)
    assert document.keys() >= {"run", "device", "timer", "exit_code", "weighted_speedup", "results"}
    wanted = {
        "case", "op", "kernel", "role", "status", "time_us", "ci_us", "speedup", "sol", "accuracy", "verdict", "reason",
    }  # fmt: skip
    assert all(result.keys() >= wanted for result in document["results"])
    assert {"a word", "another word"} <= set(process.stderr.splitlines()), "the planted noise was made, and went elsewhere"


def test_the_document_says_how_every_kernel_fared(finished: Finished) -> None:
    _, process = finished
    document = json.loads(process.stdout)
    assert process.returncode == document["exit_code"] == ExitCode.KERNEL_FAILED
    assert document["timer"] == "host"
    found = {result["kernel"]: result for result in document["results"]}
    assert {kernel: result["status"] for kernel, result in found.items()} == {
        "scale/exits@1": "crashed",
        "scale/fast@2": "not_runnable",
        "scale/prints@1": "measured",
        "scale/split@1": "measured",
        "scale/wrong@1": "wrong",
    }
    assert found["scale/wrong@1"]["time_us"] is None, "what is wrong is never timed"
    assert found["scale/wrong@1"]["verdict"] == "error"
    low, high = found["scale/prints@1"]["ci_us"]
    assert low < found["scale/prints@1"]["time_us"] < high
    assert found["scale/prints@1"]["speedup"] > 0
    assert "best_fused" in document["weighted_speedup"]["scale"]


def test_the_run_folder_holds_record_samples_report_and_plot(finished: Finished) -> None:
    project, process = finished
    folder = Path(json.loads(process.stdout)["run"])
    assert folder.parent == project / "results" / "runs"
    assert {file.name for file in folder.iterdir()} == {"run.json", "samples.parquet", "report.md", "speedup.png"}
    run = read_run(folder)
    assert run.complete
    assert run.exit_code == ExitCode.KERNEL_FAILED
    assert run.command.endswith("--case even --json")
    samples = read_samples(folder)
    assert set(samples["arm"]) == {"copy", "stream", "control", "scale/split@1", "scale/prints@1"}
    assert len(samples) == 2 * 2 * 5
    assert (folder / "speedup.png").read_bytes().startswith(b"\x89PNG")
    assert "scale/wrong@1" in (folder / "report.md").read_text()


def test_without_a_terminal_progress_is_plain_lines_on_stderr(finished: Finished) -> None:
    _, process = finished
    lines = process.stderr.splitlines()
    assert any(line.startswith("[1/1] scale:even  8") for line in lines)
    assert any(line.startswith("    scale/exits@1  crashed  (the process died") for line in lines)
    assert any(line.startswith("    scale/prints@1  measured") for line in lines)
    assert "\x1b" not in process.stderr


def test_a_precision_measures_in_four_processes_or_more_and_the_record_says_so(toy_project: Path) -> None:
    add_kernel(toy_project, "plain")
    process = subprocess.run(
        command(*QUICK, "--case", "even", "--precision", "1"), cwd=toy_project, capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == ExitCode.PASS, process.stderr
    folder = only_run(toy_project)
    timings = {result.kernel: result.measurement for result in read_run(folder).results if result.measurement is not None}
    assert set(timings) == {"scale/plain@1", "scale/split@1"}
    counts = {timing.processes for timing in timings.values()}
    assert counts <= {4, 8, 12}
    (processes,) = counts
    assert {timing.replicates for timing in timings.values()} == {2 * processes}
    samples = read_samples(folder)
    assert len(samples) == 2 * 2 * 5 * processes
    assert set(samples["process"]) == set(range(processes))
    assert set(samples["replicate"]) == {0, 1}
    assert f"2 replicates x 2 rounds in each of {processes} processes" in process.stdout


@pytest.mark.parametrize(
    ("send", "options", "fewest"),
    [
        pytest.param(lambda pid: os.killpg(pid, signal.SIGINT), [], 1, id="ctrl_c"),  # as a terminal does it: to every process
        pytest.param(lambda pid: os.kill(pid, signal.SIGTERM), [], 1, id="time_limit"),
        pytest.param(lambda pid: os.killpg(pid, signal.SIGINT), ["--precision", "1"], 5, id="ctrl_c_with_further_processes"),
    ],
)
def test_an_interruption_keeps_an_incomplete_run_ends_every_process_and_exits_130(
    toy_project: Path, send: Callable[[int], None], options: list[str], fewest: int
) -> None:
    add_kernel(toy_project, "sleeps", "time.sleep(1000 if x.numel() == 7 else 0)")
    process = subprocess.Popen(
        command(*QUICK, *options),
        cwd=toy_project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts background jobs with Ctrl-C ignored, children inherit that, and Python then leaves it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no threads are started before it
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("[2/2] scale:odd"):
                break
        family = psutil.Process(process.pid).children(recursive=True)
        send(process.pid)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stdout == ""
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    run: Run = read_run(only_run(toy_project))
    assert not run.complete
    assert {result.case for result in run.results if result.status is Status.MEASURED} == {"even"}
    assert len(family) >= fewest
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
