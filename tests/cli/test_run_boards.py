"""`run` on several boards of one host, of which the CPU plays two: leases, unfit boards, checks ahead, a serving judge, budgets."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device.boards import resolve_boards
from fusebench.device.lock import device_lock, wanted_by_others
from fusebench.fleet import board_process
from fusebench.runner.case_kernels import work_of
from fusebench.runner.workers.ahead import Checks
from fusebench.runner.workers.protocol import Measured, TimeTask
from fusebench.schema import ExitCode, Status
from fusebench.store.baselines import promote
from fusebench.store.journal import journals_in
from fusebench.store.run_folder import read_run
from helpers import boards_bench, run_bench
from helpers.boards_bench import BOARDS, CASES, COMMAND, Fusebench, board_of_this_process, content, folder_of, on_board, run
from helpers.run_bench import FakeWorkers, measured

project, workers = boards_bench.project, run_bench.workers


def test_every_case_is_measured_once_on_one_board_that_the_record_names(fusebench: Fusebench, project: Path) -> None:
    found = run(fusebench)
    assert [one.case.name for one in found.cases] == [f"c{number}" for number in range(CASES + 1)], "in the suite's order"
    assert {one.board for one in found.cases} == set(BOARDS), "both boards measured"
    assert found.environment.device_uuid == ",".join(BOARDS)
    assert found.cases[-1].same_as == "many:c0"
    assert set(found.environment.state["boards"]) == set(BOARDS)
    alone = read_run(folder_of(fusebench(*[one if one != "cpu:0,1" else "cpu" for one in COMMAND])))
    assert content(found) == content(alone)
    assert found.complete
    assert journals_in(project / "results" / "runs") == []


def test_what_a_board_needs_to_know_reaches_a_process_that_is_started_afresh(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusebench.fleet.boards import setups_of

    monkeypatch.setattr("fusebench.fleet.strategy.setups_of", lambda *given: pickle.loads(pickle.dumps(setups_of(*given))))
    assert run(fusebench).complete


def test_the_longest_cases_go_first(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench(*COMMAND)
    shown = [line for line in outcome.stderr.splitlines() if line.startswith("[")]
    assert {line.split()[1] for line in shown[:2]} <= {"many:c5", "many:c4", "many:c3"}, "by bytes, where no run is stored"
    assert "on cpu:" in outcome.stderr


def test_a_board_in_use_leaves_its_cases_to_the_other(fusebench: Fusebench, project: Path) -> None:
    with device_lock(resolve_boards("cpu:0,1")[1]):
        found = run(fusebench)
    assert {one.board for one in found.cases} == {BOARDS[0]}
    assert any("cpu:1 is left out from here on" in text and "(cpu:1) is in use by another fusebench run" in text for text in found.warnings)


def test_a_board_that_becomes_unfit_loses_its_lease(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    from fusebench.errors import DeviceUnfitError

    def unfit(task: TimeTask) -> None:
        raise DeviceUnfitError("it throttles")

    workers.timed = on_board(1, unfit, patience_s=30.0)
    found = run(fusebench)
    assert {one.board for one in found.cases} == {BOARDS[0]}
    assert any("cpu:1 is left out from here on: it throttles" in text for text in found.warnings)
    assert content(found)[0] == [f"many:c{number}" for number in range(CASES + 1)]


def test_without_any_fit_board_the_run_says_why_of_each(fusebench: Fusebench, project: Path) -> None:
    first, second = resolve_boards("cpu:0,1")
    with device_lock(first), device_lock(second):
        outcome = fusebench(*COMMAND)
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert "no board is left to measure on: cpu:0: " in outcome.stderr
    assert "; cpu:1: " in outcome.stderr


def test_suspects_are_remeasured_on_their_own_board(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    promote(folder_of(fusebench(*COMMAND)), project / "results", force=True)
    slow = {f"c{number}" for number in range(1, CASES)}

    def timed(task: TimeTask) -> Measured:
        time.sleep(0.05)  # neither board gets all cases
        return measured(task, 3.0 if task.case.name in slow else 2.0)

    workers.timed = timed
    outcome = fusebench(*COMMAND, "--no-evidence")
    assert outcome.exit_code == ExitCode.REGRESSION, outcome.output
    found = read_run(folder_of(outcome))
    assert {one.case.name for one in found.cases if one.suspicion} == slow
    results = [one for one in found.results if one.case in slow and one.kernel == "scale/plain@1"]
    assert {one.measurement.processes for one in results if one.measurement} == {8}
    boards: dict[str, list[str]] = {name: [] for name in (*slow, "c0")}
    name = ""
    for line in outcome.stderr.splitlines():
        name = line.partition("many:")[2].split()[0] if line.startswith("[") else name
        if line.strip().startswith("on cpu:"):
            boards[name].append(line.strip().partition(",")[0].removeprefix("on cpu:"))
    assert all(len(boards[name]) == 2 and len(set(boards[name])) == 1 for name in slow), boards
    assert {boards[name][0] for name in slow} == {"0", "1"}
    assert all(one.board == BOARDS[int(boards[one.case.name][-1])] for one in found.cases if one.case.name in boards)


def test_checks_ahead_are_shared_out_and_count_on_any_board(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The checks of a GPU run.  One board is killed meanwhile: its cases are checked when they are measured."""

    def check(pool: Any, units: Any, *, on_step: Callable[[int, int], None]) -> Checks:
        on_step(0, len(units))
        board = board_of_this_process()
        (tmp_path / f"checks_of_{board}").write_text(" ".join(unit.case.name for unit in units))
        if board == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while not (tmp_path / "checks_of_1").exists():  # else it might check everything before the other has started
            time.sleep(0.01)
        passed = {str(kernel.id): accuracy for unit in units for kernel in unit.runnable}
        return Checks(cases=len(units), passed={work_of(unit): passed for unit in units}, wrong={}, seconds={"scale/plain@1": 1.0})

    accuracy = msgspec.structs.replace(run_bench.RIGHT, seed=77)
    monkeypatch.setattr("fusebench.fleet.strategy.checks_ahead", lambda request: True)
    monkeypatch.setattr("fusebench.fleet.board_process.check_ahead", check)
    found = run(fusebench)
    there, lost = (set((tmp_path / f"checks_of_{board}").read_text().split()) for board in (0, 1))
    assert there | lost == {f"c{number}" for number in range(CASES)}
    assert not there & lost
    seeds = {one.case: one.accuracy.seed for one in found.results if one.kernel == "scale/plain@1" and one.accuracy is not None}
    assert {name for name, seed in seeds.items() if seed == 77} == there | ({"c6"} if "c0" in there else set())
    assert found.complete


def test_four_boards_decide_by_their_own_share_whether_checks_ahead_pay(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The start of further processes is paid on each board, so each share, and not the selection, must hold enough cases."""
    from fusebench.runner.workers import ahead

    def check(pool: Any, units: Any, **options: Any) -> Checks:
        found = ahead.check_ahead(pool, units, processes=8, marks=tmp_path / "marks", **options)
        (tmp_path / f"share_{units[0].case.name}").write_text(f"{len(units)} {found.cases}")
        return found

    monkeypatch.setattr("fusebench.fleet.strategy.checks_ahead", lambda request: True)
    monkeypatch.setattr("fusebench.fleet.board_process.check_ahead", check)
    for name in ("FEWEST_CASES", "FEWEST_CHECKS"):
        monkeypatch.setattr(ahead, name, CASES)
    outcome = fusebench(*[one if one != "cpu:0,1" else "cpu:0-3" for one in COMMAND])
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert read_run(folder_of(outcome)).complete
    told = [[int(number) for number in file.read_text().split()] for file in tmp_path.glob("share_*")]
    assert sum(cases for cases, _ in told) == CASES, "every case is in one share"
    assert all(checked == 0 for _, checked in told), "the selection has enough cases, and no share has"


def test_checks_ahead_are_shared_out_by_number_though_one_case_takes_longest(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A board that got the long one alone checked nothing ahead, and compiled while it timed."""

    def check(pool: Any, units: Any, **options: Any) -> Checks:
        (tmp_path / f"share_{units[0].case.name}").write_text(" ".join(unit.case.name for unit in units))
        return Checks()

    monkeypatch.setattr("fusebench.fleet.strategy.checks_ahead", lambda request: True)
    monkeypatch.setattr("fusebench.fleet.board_process.check_ahead", check)
    monkeypatch.setattr(
        "fusebench.fleet.strategy.expected_seconds",
        lambda cases, *_: {case.key: 1000.0 if case.name == "c3" else 1.0 for case in cases},
    )
    assert run(fusebench).complete
    shares = [file.read_text().split() for file in tmp_path.glob("share_*")]
    assert len(shares) == 2, shares
    assert abs(len(shares[0]) - len(shares[1])) <= 1, shares


class Server:
    """A serving judge seen from a run: it holds a board between its evaluations, and leaves it when somebody waits."""

    def __init__(self, number: int, *, evaluates_s: float, leaves: bool = True) -> None:
        self.device, self.held, self.left_at = resolve_boards("cpu:0,1")[number], threading.Event(), 0.0
        self._evaluates_s, self._leaves, self._over = evaluates_s, leaves, threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        with device_lock(self.device):
            self.held.set()
            time.sleep(self._evaluates_s)
            while not self._over.wait(0.02) and not (self._leaves and wanted_by_others(self.device)):
                pass
            self.left_at = time.time()

    def __enter__(self) -> Server:
        self._thread.start()
        assert self.held.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)


def test_a_nightly_takes_a_board_after_the_evaluation_of_a_serving_judge(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path
) -> None:
    def timed(task: TimeTask) -> Measured:
        (tmp_path / f"{board_of_this_process()} {task.case.name} {time.time()}").touch()
        time.sleep(0.2)
        return measured(task, 2.0)

    workers.timed = timed
    with Server(1, evaluates_s=0.3) as server:
        found = run(fusebench, "--wait", "20")
    assert {one.board for one in found.cases} == set(BOARDS), "the judge left its board to the run that waits"
    began = [float(file.name.split()[2]) for file in tmp_path.glob("1 c*")]
    assert min(began) >= server.left_at, "nothing was measured on the board beside the evaluation"
    assert found.complete


def test_a_judge_that_does_not_leave_its_board_costs_the_nightly_that_board_alone(fusebench: Fusebench, project: Path) -> None:
    with Server(1, evaluates_s=0.0, leaves=False):
        found = run(fusebench, "--wait", "0.2")
    assert {one.board for one in found.cases} == {BOARDS[0]}
    assert found.complete


def test_threads_of_a_board_send_whole_messages() -> None:
    class Line:
        sending = twice = False

        def send(self, message: object) -> None:
            self.twice |= self.sending
            self.sending = True
            time.sleep(0.002)
            self.sending = False

    line: Any = Line()
    sender = board_process._Sender(line)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(sender.note, ["text"] * 8))
    assert not line.twice


def test_a_budget_leaves_the_rest_undecided(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    def timed(task: TimeTask) -> Measured:
        time.sleep(0.6)
        return measured(task, 2.0)

    workers.timed = timed
    found = run(fusebench, "--budget", "1", code=ExitCode.UNDECIDED)
    assert not found.complete
    assert len(found.cases) == CASES + 1
    left = {one.case for one in found.results if one.status is Status.NOT_MEASURED}
    assert left
    assert len(left) < CASES + 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cpu:0,0", "cpu:0 is named twice; name each device once"),
        ("cpu:0,", "expected auto, cpu, cuda, cuda:N, all, or a list such as cuda:0,2-3"),
        ("cuda:3-1,5", "3-1 is no range of devices"),
        ("everything", "expected auto, cpu, cuda"),
    ],
)
def test_a_wrong_list_of_devices_is_refused(fusebench: Fusebench, project: Path, spec: str, said: str) -> None:
    outcome = fusebench("run", "--suite", "many", "--device", spec)
    assert outcome.exit_code == ExitCode.USAGE
    assert said in outcome.stderr


def test_a_gpu_that_is_not_there_is_named(fusebench: Fusebench, project: Path, with_gpu: Any) -> None:
    outcome = fusebench("run", "--suite", "many", "--device", "cuda:0,3")
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert "there is no such GPU; visible are cuda:0 NVIDIA H200" in outcome.stderr
