"""A run that is killed, that meets a full disk, or that somebody else still makes: nothing finished is lost, and it goes on."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fusebench.errors import RunRecordError
from fusebench.runner.workers.protocol import Measured, TimeTask
from fusebench.schema import ExitCode, Run
from fusebench.store.journal import REBUILT, SUFFIX, journals_in, recover, write_whole
from fusebench.store.run_folder import read_run, read_samples
from helpers import run_bench
from helpers.kills import ended, in_child, interrupted_lock, killed_at_random, seconds_of
from helpers.run_bench import FakeWorkers, measured

Fusebench = Callable[..., Any]
CASES = 6
WRITE = "fusebench.runner.run.command.write_whole"
COMMAND = ["run", "--suite", "many", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2"]
workers = run_bench.workers


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with a kernel that runs on a CPU and a suite of cases of different work, at a known commit."""
    run_bench.add_kernel(toy_project, "plain")
    lines = ['[suite]\nname = "many"\ndescription = "for kills"\n']
    lines += [f'[[case]]\nname = "c{one}"\nop = "scale"\nparams = {{ size = {64 * (one + 1)} }}\n' for one in range(CASES)]
    (toy_project / "suites" / "many.toml").write_text("\n".join(lines))
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    monkeypatch.setattr("fusebench.report.run.pages.write_views", lambda *_: None)
    return toy_project


@pytest.fixture(autouse=True)
def slow(workers: FakeWorkers) -> None:
    """Each case takes a few milliseconds."""

    def timed(task: TimeTask) -> Measured:
        time.sleep(0.005)
        return measured(task, 2.0)

    workers.timed = timed


def content(run: Run) -> Any:
    """What must be the same however often a run was killed."""
    results = {(one.case_key, one.kernel): (one.status, one.measurement, one.accuracy) for one in run.results}
    return [one.case.key for one in run.cases], results, [one.id for one in run.kernels], run.suites, run.exit_code, run.complete


def newest(project: Path) -> Path:
    return max(one for one in (project / "results" / "runs").iterdir() if not one.name.startswith("."))


def resumed(fusebench: Fusebench, project: Path) -> Run:
    """The run that goes on with the latest one, or a new one where nothing had begun."""
    there = list((project / "results" / "runs").glob("[!.]*"))
    outcome = fusebench(*(["run", "--resume", "latest"] if there else COMMAND))
    if "is complete" in outcome.output:
        return read_run(newest(project))
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    return read_run(Path(outcome.stdout.rstrip().rpartition("run: ")[2]))


def kill_and_resume(fusebench: Fusebench, project: Path, kills: int) -> None:
    assert fusebench(*COMMAND).exit_code == ExitCode.PASS  # it also imports all that each child would import anew
    expected = content(read_run(newest(project)))
    longest = seconds_of(lambda: fusebench(*COMMAND).exit_code)
    for number in range(kills):
        for folder in (project / "results" / "runs").iterdir():
            folder.rename(project / f"done{number}_{folder.name}")
        killed_at_random(lambda: fusebench(*COMMAND).exit_code, longest)
        for journal in journals_in(project / "results" / "runs"):
            folder = recover(journal)
            read_samples(folder)
            killed = read_run(folder)
            assert killed.complete or REBUILT in killed.warnings
            assert fusebench("report", str(folder)).exit_code == ExitCode.PASS
        run = resumed(fusebench, project)
        assert content(run) == expected, number
        assert journals_in(project / "results" / "runs") == []


def test_a_run_killed_at_any_moment_leaves_a_readable_record_and_goes_on(fusebench: Fusebench, project: Path) -> None:
    kill_and_resume(fusebench, project, 3)


@pytest.mark.exhaustive
def test_a_hundred_kills(fusebench: Fusebench, project: Path) -> None:
    kill_and_resume(fusebench, project, 100)


def die_at(case: str, how: Callable[[], None]) -> Callable[[TimeTask], Measured]:
    def timed(task: TimeTask) -> Measured:
        if task.case.name == case:
            how()
        return measured(task, 2.0)

    return timed


class Later(datetime):
    """A clock of which each reading is a second later than the last one."""

    readings = 0

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        cls.readings += 1
        return datetime.now(tz) + timedelta(seconds=cls.readings)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_every_finished_case_of_a_killed_run_is_kept_and_only_the_others_are_measured(
    fusebench: Fusebench, project: Path, workers: FakeWorkers
) -> None:
    workers.timed = die_at("c3", kill_myself)
    assert ended(in_child(lambda: fusebench(*COMMAND).exit_code)) == -signal.SIGKILL
    (journal,) = (project / "results" / "runs").iterdir()
    assert journal.name.endswith(SUFFIX)
    run_id = journal.name.removesuffix(SUFFIX).partition("_")[2]
    workers.timed = lambda task: measured(task, 2.0)
    workers.tasks.clear()
    outcome = fusebench("history", "--json")
    assert run_id in outcome.stdout, "a history sees the killed run"
    outcome = fusebench("run", "--resume", run_id)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert [task.case.name for task in workers.measurements] == ["c3", "c4", "c5"]
    folder = Path(outcome.stdout.rstrip().rpartition("run: ")[2])  # both folders may be of one second, so that names do not tell
    run = read_run(folder)
    assert (run.complete, run.resumed_from, len(run.cases)) == (True, [run_id], CASES)
    # The messages of a killed run name its journal.
    assert "is complete" in fusebench("run", "--resume", f"{folder}{SUFFIX}").output


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def printed_hint(stderr: str) -> list[str]:
    """The arguments of the command that an interruption prints."""
    (line,) = [line for line in stderr.splitlines() if "go on with it by: " in line]
    program, *arguments = shlex.split(line.partition("go on with it by: ")[2])
    assert program == "fusebench"
    return arguments


@pytest.mark.parametrize("where", ["", "--out", "--results", "--results file://"])
def test_the_command_that_an_interruption_prints_completes_the_run_beside_the_stopped_record(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path, where: str
) -> None:
    option, _, scheme = where.partition(" ")
    elsewhere = tmp_path / "else where"
    parent = {"--out": elsewhere, "--results": elsewhere / "runs"}.get(where, project / "results" / "runs")
    workers.timed = die_at("c3", interrupt)
    outcome = fusebench(*COMMAND, *([option, f"{scheme}{elsewhere}"] if option else []))
    assert outcome.exit_code == 130, outcome.output
    (stopped,) = parent.iterdir()
    written = {file.name: file.read_bytes() for file in stopped.iterdir()}
    hint = printed_hint(outcome.stderr)
    assert hint[-2:] == ["--resume", str(stopped)]
    workers.timed = lambda task: measured(task, 2.0)
    workers.tasks.clear()
    outcome = fusebench(*hint)
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    assert [task.case.name for task in workers.measurements] == ["c3", "c4", "c5"]
    (finished,) = set(parent.iterdir()) - {stopped}
    run = read_run(finished)
    assert (run.complete, run.resumed_from, len(run.cases)) == (True, [read_run(stopped).id], CASES)
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == written, "the stopped record stays as it was"
    if scheme:
        assert (elsewhere / "runs" / finished.name).is_dir(), "the resumed run is published, like any"


def test_a_run_resumed_by_its_folder_alone_stays_beside_it_unless_another_folder_is_named(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path
) -> None:
    workers.timed = die_at("c3", interrupt)
    fusebench(*COMMAND, "--out", str(tmp_path / "out"))
    (stopped,) = (tmp_path / "out").iterdir()
    outcome = fusebench("run", "--resume", str(stopped))
    assert outcome.exit_code == 130
    (again,) = set((tmp_path / "out").iterdir()) - {stopped}
    assert printed_hint(outcome.stderr) == ["run", "--resume", str(again)], "not what the first one went on with"
    workers.timed = lambda task: measured(task, 2.0)
    assert fusebench("run", "--resume", str(again), "--out", str(tmp_path / "third")).exit_code == ExitCode.PASS
    (finished,) = (tmp_path / "third").iterdir()
    assert read_run(finished).resumed_from == [read_run(stopped).id, read_run(again).id]
    assert not (project / "results" / "runs").exists()


def test_two_records_of_one_run_count_once(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.timed = die_at("c3", interrupt)
    fusebench(*COMMAND)
    (stopped,) = (project / "results" / "runs").iterdir()
    workers.timed = lambda task: measured(task, 2.0)
    monkeypatch.setattr("fusebench.runner.context.datetime", Later)
    assert fusebench("run", "--resume", "latest").exit_code == ExitCode.PASS
    first, run = read_run(stopped), read_run(newest(project))
    assert f"run {run.id}" in fusebench("report", "latest").stdout
    history = json.loads(fusebench("history", "--json").stdout)
    assert [one["run"] for one in history["runs"]] == [run.id]
    assert [(one["run"], one["reason"]) for one in history["left_out"]] == [(first.id, f"run {run.id} went on with it and holds its cases")]
    assert "1 run in the catalogue" in fusebench("catalogue", "rebuild").output
    counted = fusebench("catalogue", "query", "SELECT DISTINCT run FROM results", "--json")
    assert json.loads(counted.stdout) == [{"run": run.id}]


def test_a_run_that_is_still_in_progress_is_not_taken_for_a_killed_one(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    workers.timed = die_at("c2", lambda: time.sleep(1000))
    pid = in_child(lambda: fusebench(*COMMAND).exit_code)
    try:
        while not [one for one in journals_in(project / "results" / "runs") if len(list(one.glob("*.case"))) == 2]:
            assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "the run ended before its third case"
            time.sleep(0.01)
        (journal,) = journals_in(project / "results" / "runs")
        run_id = journal.name.removesuffix(SUFFIX).partition("_")[2]
        for name in (run_id, str(journal), str(journal).removesuffix(SUFFIX), "latest"):
            outcome = fusebench("run", "--resume", name)
            assert outcome.exit_code == ExitCode.USAGE
            assert f"this run is still in progress: pid {pid}" in outcome.stderr, name
        assert "unfinished" not in fusebench("history").output
    finally:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
    workers.timed = lambda task: measured(task, 2.0)
    assert resumed(fusebench, project).complete


def test_a_full_disk_says_what_is_kept_and_the_run_goes_on_later(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, tmp_path: Path
) -> None:
    workers.timed = die_at("c2", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY)))

    def run() -> int:
        outcome = fusebench(*COMMAND)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        (tmp_path / "said").write_text(outcome.stderr)
        return int(outcome.exit_code)

    assert ended(in_child(run)) == ExitCode.USAGE
    (journal,) = journals_in(project / "results" / "runs")
    said = (tmp_path / "said").read_text()
    assert f"File too large; the cases that were finished before are kept in {journal}" in said
    assert f"fusebench {shlex.join([*COMMAND, '--resume', str(journal)])}" in said
    assert "Traceback" not in said
    workers.timed = lambda task: measured(task, 2.0)
    workers.tasks.clear()
    assert fusebench("run", "--resume", str(journal)).exit_code == ExitCode.PASS
    assert [task.case.name for task in workers.measurements] == [f"c{one}" for one in range(2, CASES)]


def test_a_disk_that_is_full_at_the_end_keeps_the_journal(
    fusebench: Fusebench, project: Path, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(WRITE, full)
        outcome = fusebench(*COMMAND)
    assert outcome.exit_code == ExitCode.USAGE
    assert "No space left on device; the cases that were finished before are kept in" in outcome.stderr
    workers.tasks.clear()
    assert resumed(fusebench, project).complete
    assert workers.tasks == []


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_the_record_is_written_wait_for_its_end(
    fusebench: Fusebench, project: Path, name: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_whole

    def interrupted(*arguments: Any) -> Path:
        os.kill(os.getpid(), name)
        os.kill(os.getpid(), name)
        return write(*arguments)

    monkeypatch.setattr(WRITE, interrupted)
    assert fusebench(*COMMAND).exit_code == 130
    assert journals_in(project / "results" / "runs") == []
    run = read_run(newest(project))
    assert run.complete
    assert len(run.cases) == CASES


@pytest.mark.parametrize("how", [interrupt, interrupted_lock])
def test_ctrl_c_between_the_last_case_and_the_writing_loses_nothing(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[..., None]
) -> None:
    monkeypatch.setattr("fusebench.runner.workers.pool.WorkerPool.__exit__", how)
    assert fusebench(*COMMAND).exit_code == 130
    run = read_run(newest(project))
    assert (len(run.cases), run.exit_code) == (CASES, ExitCode.PASS)
    assert not any("fault" in warning for warning in run.warnings)


def test_a_damaged_file_of_the_journal_costs_its_case_and_is_named(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    workers.timed = die_at("c3", kill_myself)
    ended(in_child(lambda: fusebench(*COMMAND).exit_code))
    (journal,) = journals_in(project / "results" / "runs")
    (journal / "000001.case").write_bytes((journal / "000001.case").read_bytes()[:200])
    run = read_run(recover(journal))
    assert [one.case.name for one in run.cases] == ["c0", "c2"]
    assert "000001.case cannot be read" in run.warnings[-1]
    workers.timed = lambda task: measured(task, 2.0)
    assert len(resumed(fusebench, project).cases) == CASES


def test_a_journal_that_its_run_removes_meanwhile_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(RunRecordError, match="was removed meanwhile"):
        recover(tmp_path / f"20260101T000000Z_aaaa{SUFFIX}")
    assert list(tmp_path.iterdir()) == []


def test_several_processes_that_find_a_killed_run_make_one_folder_of_it(fusebench: Fusebench, project: Path, workers: FakeWorkers) -> None:
    workers.timed = die_at("c3", kill_myself)
    ended(in_child(lambda: fusebench(*COMMAND).exit_code))
    (journal,) = journals_in(project / "results" / "runs")
    children = [in_child(lambda: fusebench("report", "latest").exit_code) for _ in range(3)]
    assert [ended(child) for child in children] == [ExitCode.PASS] * 3
    (folder,) = (project / "results" / "runs").iterdir()
    assert (folder.name, len(read_run(folder).cases)) == (journal.name.removesuffix(SUFFIX), 3)


def test_runs_of_several_processes_into_one_folder_stay_apart(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(place: int) -> int:
        monkeypatch.setenv("FUSEBENCH_LOCK_DIR", str(project / f"locks{place}"))  # as if each had a device of its own
        outcome = fusebench(*COMMAND)
        (project / f"said{place}").write_text(f"{outcome.output}\n{outcome.exception!r}")
        return int(outcome.exit_code)

    children = [in_child(lambda place=place: run(place)) for place in range(3)]
    codes = [ended(child) for child in children]
    assert codes == [ExitCode.PASS] * 3, [file.read_text() for file in sorted(project.glob("said*"))]
    records = [read_run(folder) for folder in (project / "results" / "runs").iterdir()]
    assert [(len(run.cases), run.complete) for run in records] == [(CASES, True)] * 3
    assert len({run.id for run in records}) == 3
