"""A run on several boards of one host, of which the CPU plays two: the project, the command, and what its record holds."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.device.boards import resolve_boards
from fusebench.runner.workers.protocol import Measured, TimeTask
from fusebench.schema import ExitCode, Run
from fusebench.store.run_folder import read_run
from helpers import run_bench
from helpers.run_bench import FakeWorkers, measured

Fusebench = Callable[..., Any]
CASES = 6
COMMAND = ["run", "--suite", "many", "--device", "cpu:0,1", "--cache", "warm", "--replicates", "2", "--rounds", "2"]
BOARDS = [device.uuid for device in resolve_boards("cpu:0,1")]


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch, workers: FakeWorkers) -> Path:
    """The toy project with a suite of seven cases, the last of which is the same work as the first.  Boards are forked, with the fakes."""
    run_bench.add_kernel(toy_project, "plain")
    lines = ['[suite]\nname = "many"\ndescription = "for boards"\n']
    sizes = [64 * (one + 1) for one in range(CASES)] + [64]
    lines += [f'[[case]]\nname = "c{one}"\nop = "scale"\nparams = {{ size = {size} }}\n' for one, size in enumerate(sizes)]
    (toy_project / "suites" / "many.toml").write_text("\n".join(lines))
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    monkeypatch.setattr("fusebench.report.run.pages.write_views", lambda *_: None)
    monkeypatch.setattr("fusebench.fleet.boards.START_METHOD", "fork")
    monkeypatch.setattr("fusebench.fleet.boards.STOP_S", 2.0)
    workers.timed = slowly
    return toy_project


def slowly(task: TimeTask) -> Measured:
    time.sleep(0.01)
    return measured(task, 2.0)


def folder_of(outcome: Any) -> Path:
    return Path(outcome.stdout.rstrip().rpartition("run: ")[2])


def run(fusebench: Fusebench, *options: str, code: ExitCode = ExitCode.PASS) -> Run:
    outcome = fusebench(*COMMAND, *options)
    assert outcome.exit_code == code, outcome.output
    return read_run(folder_of(outcome))


def on_board(number: int, how: Callable[[TimeTask], None], *, patience_s: float = 0.0) -> Callable[[TimeTask], Measured]:
    """What workers answer where one board's processes do something else.

    Args:
        patience_s: how long the other boards wait for that board's first case, which may be late on a busy machine.
    """
    asked = multiprocessing.Event()

    def timed(task: TimeTask) -> Measured:
        # Each board is a process of its own, which holds its board's lock under its name.
        if board_of_this_process() == number:
            asked.set()
            how(task)
        asked.wait(patience_s)
        return slowly(task)

    return timed


def board_of_this_process() -> int:
    return int(multiprocessing.current_process().name.rpartition(":")[2])


def content(run: Run) -> Any:
    """What must be the same whichever board measured a case, and however often a process was killed."""
    results = [(one.case_key, one.kernel, one.status, one.measurement) for one in run.results]
    return [one.case.key for one in run.cases], results, [one.id for one in run.kernels], run.exit_code, run.complete
