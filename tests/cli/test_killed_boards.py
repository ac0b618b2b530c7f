"""`run` on several boards of one host, of which boards or the run itself are killed, hang or are interrupted, and `--resume`."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from fusebench.runner.workers.protocol import TimeTask
from fusebench.schema import ExitCode
from fusebench.store.journal import SUFFIX, journals_in, recover
from fusebench.store.run_folder import read_run, read_samples
from helpers import boards_bench, run_bench
from helpers.boards_bench import BOARDS, CASES, COMMAND, Fusebench, board_of_this_process, content, folder_of, on_board, run, slowly
from helpers.kills import ended, in_child, killed_at_random, seconds_of
from helpers.run_bench import FakeWorkers, measured

project, workers = boards_bench.project, run_bench.workers


def test_a_killed_board_process_is_started_again_and_its_case_measured_once(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path
) -> None:
    def die_once(task: TimeTask) -> None:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    workers.timed = on_board(1, die_once)
    found = run(fusebench)
    assert content(found)[0] == [f"many:c{number}" for number in range(CASES + 1)]
    assert any("cpu:1: its process ended (signal SIGKILL) and is started again" in text for text in found.warnings)
    samples = read_samples(project / "results" / "runs" / next((project / "results" / "runs").iterdir()).name)
    assert not samples.duplicated(["case", "arm", "process", "replicate", "round", "position"]).any()


def test_a_board_process_that_dies_again_and_again_is_given_up(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    def die(task: TimeTask) -> None:
        if board_of_this_process() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)

    workers.timed = lambda task: (die(task), measured(task, 2.0))[1]
    found = run(fusebench)
    assert {one.board for one in found.cases} == {BOARDS[0]}
    assert any("cpu:1 is left out from here on: its process ended 3 times" in text for text in found.warnings)


def test_a_board_that_hangs_loses_its_lease(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusebench.fleet.boards.IMPORT_S", 0.5)
    workers.timed = on_board(1, lambda task: os.kill(os.getpid(), signal.SIGSTOP))
    found = run(fusebench, "--kernel-timeout", "1")
    assert {one.board for one in found.cases} == {BOARDS[0]}
    assert any("cpu:1 is left out from here on: no sign of life for" in text for text in found.warnings)
    assert found.complete


def kill_and_resume(fusebench: Fusebench, project: Path, kills: int) -> None:
    expected = content(run(fusebench))
    longest = seconds_of(lambda: int(fusebench(*COMMAND).exit_code))
    for number in range(kills):
        for folder in (project / "results" / "runs").iterdir():
            folder.rename(project / f"done{number}_{folder.name}")
        killed_at_random(lambda: int(fusebench(*COMMAND).exit_code), longest)
        for journal in journals_in(project / "results" / "runs"):
            read_samples(recover(journal))
        left = [one for one in (project / "results" / "runs").glob("[!.]*") if not one.name.endswith(SUFFIX)]
        if left and read_run(left[0]).complete:
            continue
        outcome = (
            fusebench("run", "--resume", "latest", "--device", "cpu:0,1", "--wait", "5") if left else fusebench(*COMMAND, "--wait", "5")
        )
        assert outcome.exit_code == ExitCode.PASS, outcome.output
        folder = folder_of(outcome)
        assert content(read_run(folder)) == expected, number
        assert not read_samples(folder).duplicated(["case", "arm", "process", "replicate", "round", "position"]).any()
        assert {one.board for one in read_run(folder).cases} <= set(BOARDS)


def test_a_driver_killed_at_any_moment_leaves_a_readable_record_and_goes_on(fusebench: Fusebench, project: Path) -> None:
    kill_and_resume(fusebench, project, 2)


@pytest.mark.exhaustive
def test_fifty_kills_of_the_driver(fusebench: Fusebench, project: Path) -> None:
    kill_and_resume(fusebench, project, 50)


def kill_a_board(fusebench: Fusebench, project: Path, kills: int) -> None:
    expected = content(run(fusebench))
    longest = seconds_of(lambda: int(fusebench(*COMMAND).exit_code))
    for number in range(kills):
        for folder in (project / "results" / "runs").iterdir():
            folder.rename(project / f"done{number}_{folder.name}")
        pid = in_child(lambda: int(fusebench(*COMMAND).exit_code))
        time.sleep(random.uniform(0.2, 0.9) * longest)
        try:
            children = psutil.Process(pid).children()
            if children:
                random.choice(children).kill()
        except psutil.NoSuchProcess:
            pass
        assert ended(pid) == ExitCode.PASS
        (folder,) = (project / "results" / "runs").iterdir()
        assert content(read_run(folder)) == expected, number
        assert not read_samples(folder).duplicated(["case", "arm", "process", "replicate", "round", "position"]).any()


def test_a_board_killed_at_any_moment_costs_the_run_nothing(fusebench: Fusebench, project: Path) -> None:
    kill_a_board(fusebench, project, 2)


@pytest.mark.exhaustive
def test_fifty_kills_of_boards(fusebench: Fusebench, project: Path) -> None:
    kill_a_board(fusebench, project, 50)


def test_ctrl_c_keeps_finished_cases_and_ends_every_process(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    workers.timed = lambda task: measured(task, 2.0) if task.case.name in ("c5", "c4") else time.sleep(1000) or measured(task, 2.0)
    pid = in_child(lambda: int(fusebench(*COMMAND).exit_code))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if [one for one in journals_in(project / "results" / "runs") if len(list(one.glob("*.case"))) == 2]:
            break
        time.sleep(0.02)
    os.kill(pid, signal.SIGINT)
    assert ended(pid) == 130
    (folder,) = (project / "results" / "runs").iterdir()
    stopped = read_run(folder)
    assert ({one.case.name for one in stopped.cases}, stopped.complete) == ({"c4", "c5"}, False)
    workers.timed = slowly
    outcome = fusebench("run", "--resume", str(folder), "--device", "cpu:1")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    whole = read_run(folder_of(outcome))
    assert whole.environment.device_uuid == ",".join(BOARDS), "those that measured before, too"
    assert [one.board for one in whole.cases if one.case.name not in ("c4", "c5")] == [BOARDS[1]] * (CASES - 1)
    assert {one.case.name: one.board for one in whole.cases if one.case.name in ("c4", "c5")} == {
        one.case.name: one.board for one in stopped.cases
    }
