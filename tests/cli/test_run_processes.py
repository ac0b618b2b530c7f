"""`fusebench run` as a shell starts it, with real worker processes: its output, its folder, and what an interruption leaves."""

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

from fusebench.schema import ExitCode, Run, Status
from fusebench.store.run_folder import read_run, read_samples
from helpers.forked_workers import run_module
from helpers.run_bench import QUICK, add_kernel, only_run

TOY_PROJECT = Path(__file__).parents[1] / "toy_project"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fusebench", *arguments]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run with kernels that print, are wrong, take their process down, eat memory and patch the clock, in a process of its own."""
    project = tmp_path_factory.mktemp("end_to_end") / "project"
    shutil.copytree(TOY_PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    add_kernel(project, "prints", "print('a word'); os.write(1, b'another word\\n')")
    add_kernel(project, "wrong", "x.add_(0.25)")
    add_kernel(project, "exits", "os._exit(7)")
    add_kernel(project, "eats", "x.new_empty(2**60)")
    add_kernel(project, "patches", "time.perf_counter = lambda: 0.0")
    environment = os.environ | {"FUSEBENCH_LOCK_DIR": str(project.parent / "locks")}
    return project, run_module(["fusebench", *QUICK, "--case", "even", "--json"], environment, project)


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
        "scale/eats@1": "out_of_memory",
        "scale/exits@1": "crashed",
        "scale/fast@2": "not_runnable",
        "scale/patches@1": "crashed",
        "scale/prints@1": "measured",
        "scale/split@1": "measured",
        "scale/wrong@1": "wrong",
    }
    assert "it replaced time.perf_counter" in found["scale/patches@1"]["reason"]
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
    tables = {"cases.parquet", "kernels.parquet", "results.parquet", "samples.parquet", "warm_up.parquet"}
    assert {file.name for file in folder.iterdir()} == {"run.json", *tables, "report.md", "speedup.png"}
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
    assert any(line.startswith("[1/1] scale:even  4096") for line in lines)
    assert any(line.startswith("    scale/exits@1  crashed  (the process died") for line in lines)
    assert any(line.startswith("    scale/prints@1  measured") for line in lines)
    assert "\x1b" not in process.stderr


@pytest.mark.usefixtures("forked_workers")
def test_a_precision_measures_in_four_processes_or_more_and_the_record_says_so(toy_project: Path, fusebench: Callable[..., Any]) -> None:
    add_kernel(toy_project, "plain")
    outcome = fusebench(*QUICK, "--case", "even", "--precision", "1")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
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
    assert f"2 replicates x 2 rounds in each of {processes} processes" in outcome.stdout


@pytest.mark.parametrize(
    ("send", "options", "fewest"),
    [
        pytest.param(lambda pid: os.killpg(pid, signal.SIGINT), [], 1, id="ctrl_c"),  # as a terminal does it: to every process
        pytest.param(lambda pid: os.kill(pid, signal.SIGTERM), [], 1, id="time_limit"),
        pytest.param(
            lambda pid: os.killpg(pid, signal.SIGINT),
            ["--precision", "1"],
            5,
            marks=pytest.mark.exhaustive,
            id="ctrl_c_with_further_processes",
        ),
    ],
)
def test_an_interruption_keeps_an_incomplete_run_ends_every_process_and_exits_130(
    toy_project: Path, send: Callable[[int], None], options: list[str], fewest: int
) -> None:
    add_kernel(toy_project, "sleeps", "time.sleep(1000 if x.numel() == 4097 else 0)")
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
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    run: Run = read_run(only_run(toy_project))
    assert not run.complete
    assert {result.case for result in run.results if result.status is Status.MEASURED} == {"even"}
    assert len(family) >= fewest
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
