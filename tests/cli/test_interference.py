"""Boards that disturb each other: the A/A measurement on one busy board and on all, and what a run makes of it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.fleet import interference
from fusebench.fleet.interference import BusyBoards, Interference, interference_file, interference_lines, load_interference
from fusebench.runner.workers.protocol import Measured, TimeTask
from fusebench.schema import Estimate, ExitCode
from helpers import run_bench
from helpers.run_bench import FakeWorkers, measured

Fusebench = Callable[..., Any]
workers = run_bench.workers
COMMAND = ["calibrate", "--device", "cpu:0,1", "--suite", "scale", "--cache", "warm"]


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch, workers: FakeWorkers) -> Path:
    run_bench.add_kernel(toy_project, "plain")
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    monkeypatch.setattr("fusebench.report.run.pages.write_views", lambda *_: None)
    monkeypatch.setattr("fusebench.fleet.boards.START_METHOD", "fork")
    monkeypatch.setattr("fusebench.fleet.interference.MOST_CASES", 2)
    return toy_project


def disturbing(folder: Path, factor: float, monkeypatch: pytest.MonkeyPatch) -> Callable[[TimeTask], Measured]:
    """Answers of workers whose times are longer by `factor` while another board measures.

    Boards that are to measure at once wait for one another, however late a busy machine starts one of them: those that did not measure at
    once would wait in vain.
    """
    folder.mkdir()
    visit = interference._Visits._visit
    visits = 0

    def visited(self: Any, group: Any, unit: Any) -> Any:
        nonlocal visits
        visits += 1
        (folder / f"{visits}").mkdir()
        (folder / "now").write_text(f"{visits} {len(group)}")
        return visit(self, group, unit)

    monkeypatch.setattr(interference._Visits, "_visit", visited)

    def timed(task: TimeTask) -> Measured:
        name, boards = (folder / "now").read_text().split()
        (folder / name / str(os.getpid())).touch()
        waited_until = time.monotonic() + 60
        while (busy := len(list((folder / name).iterdir()))) < int(boards):
            assert time.monotonic() < waited_until, f"{busy} of {boards} boards measured at once"
            time.sleep(0.01)
        assert busy == int(boards)
        reply = measured(task, 2.0)
        if busy == 1:
            return reply
        samples = [msgspec.structs.replace(one, span_ns=round(one.span_ns * factor)) for one in reply.samples]
        return msgspec.structs.replace(reply, samples=samples)

    return timed


def test_a_bias_by_busy_boards_is_found_stored_and_acted_on(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.timed = disturbing(tmp_path / "marks", 1.2, monkeypatch)
    outcome = fusebench(*COMMAND, "--json")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    (size,) = json.loads(outcome.stdout)["sizes"]
    assert size["busy"] == 2
    assert size["time"]["value"] == pytest.approx(1.2, abs=0.03)
    (file,) = (project / "results" / "interference").iterdir()
    found = msgspec.json.decode(file.read_bytes(), type=Interference)
    assert found.cases == ("scale:odd", "scale:even"), "the longest first: the shortest alone, which a budget may leave, draw little power"
    assert found.most_at_once(2) == 1
    assert found.between_boards == pytest.approx({"cpu:0": 1.0, "cpu:1": 1.0}, abs=0.03)
    # A run then measures on one board at a time.
    seen = tmp_path / "busy"
    seen.mkdir()
    most: list[int] = []

    def alone(task: TimeTask) -> Measured:
        mark = seen / str(os.getpid())
        mark.touch()
        time.sleep(0.05)
        (tmp_path / f"most{len(list(seen.iterdir()))}").touch()
        mark.unlink()
        return measured(task, 2.0)

    workers.timed = alone
    outcome = fusebench("run", "--suite", "scale", "--device", "cpu:0,1", "--cache", "warm", "--replicates", "2", "--rounds", "2")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert (tmp_path / "most1").exists()
    assert not (tmp_path / "most2").exists(), most


def test_harmless_interference_lets_all_measure(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.timed = disturbing(tmp_path / "marks", 1.0, monkeypatch)
    outcome = fusebench(*COMMAND)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert "2 busy at once: times +0.00 %" in outcome.stdout
    assert "`run --device all` measures on all 2 boards at once" in outcome.stdout


def test_ctrl_c_keeps_the_finished_cases(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visit = interference._Visits._visit

    def interrupted(self: Any, group: Any, unit: Any) -> Any:
        if unit.case.key == "scale:even":
            raise KeyboardInterrupt
        return visit(self, group, unit)

    monkeypatch.setattr(interference._Visits, "_visit", interrupted)
    outcome = fusebench(*COMMAND)
    assert outcome.exit_code == 130, outcome.output
    assert not (project / "results" / "interference").exists(), "one case is too few"
    monkeypatch.setattr(interference, "FEWEST_CASES", 1)
    outcome = fusebench(*COMMAND)
    assert outcome.exit_code == 130, outcome.output
    assert "interrupted after 1 of 2 cases; what they showed is kept in" in outcome.stderr
    (file,) = (project / "results" / "interference").iterdir()
    assert msgspec.json.decode(file.read_bytes(), type=Interference).cases == ("scale:odd",)


def test_options_that_calibrate_one_device_are_refused(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*COMMAND, "--passes", "2")
    assert outcome.exit_code == ExitCode.USAGE
    assert "--passes cannot stand beside it" in outcome.stderr
    outcome = fusebench("calibrate", "--device", "cpu:0", "--suite", "scale")
    assert outcome.exit_code == ExitCode.USAGE
    assert "interference needs two" in outcome.stderr


def record(*sizes: tuple[int, float], device: str = "cuda") -> Interference:
    return Interference(
        version=1,
        created="2026-01-01T00:00:00+00:00",
        host="h",
        device=device,
        device_name="NVIDIA H200",
        boards=tuple("abcdefgh"),
        cases=("s:a",),
        sizes=tuple(BusyBoards(busy=busy, time=Estimate(value, value, math.inf), boards={"cuda:0": value}) for busy, value in sizes),
        between_boards={"cuda:0": 1.0},
    )


@pytest.mark.parametrize(
    ("sizes", "boards", "most"),
    [
        (((4, 1.0), (8, 1.001)), 8, 8),
        (((4, 1.0), (8, 1.02)), 8, 4),
        (((4, 1.0), (8, 1.02)), 6, 4),
        (((4, 1.0), (8, 1.02)), 3, 3),
        (((4, 0.99), (8, 1.02)), 8, 1),
        (((4, 0.99), (8, 1.02)), 3, 1),
        (((2, 1.001),), 4, 2),
    ],
)
def test_how_many_boards_measure_at_once(sizes: tuple[tuple[int, float], ...], boards: int, most: int) -> None:
    assert record(*sizes).most_at_once(boards) == most
    assert interference_lines(record(*sizes))


def test_a_measurement_that_cannot_be_read_is_named(fusebench: Fusebench, project: Path) -> None:
    from fusebench.device import resolve_device

    file = interference_file(project / "results", resolve_device("cpu").name)
    file.parent.mkdir(parents=True)
    file.write_text("{")
    outcome = fusebench("run", "--suite", "scale", "--device", "cpu:0,1")
    assert outcome.exit_code == ExitCode.USAGE
    assert "make it again with `fusebench calibrate --device all`" in outcome.stderr
    file.unlink()
    assert load_interference(project / "results", "nothing") is None
