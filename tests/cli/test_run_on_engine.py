"""`run --on`: shards on Parsl's local workers, workers that are lost, configurations that cannot be used."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fusebench.errors import UsageError
from fusebench.fleet import shard_results, shard_task
from fusebench.fleet.shard_results import packed_results
from fusebench.fleet.shard_task import ShardError, ShardRefusedError, measure_shard, unpacked
from fusebench.schema import ExitCode, Run
from fusebench.store.run_folder import read_run
from helpers import run_bench
from helpers.run_bench import FakeWorkers, measured

Fusebench = Callable[..., Any]
CASES = 4
workers = run_bench.workers
NOTHING = packed_results(Path("no such folder"))
"""The records of results that hold none."""
OPTIONS = ["--suite", "many", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2", "--kernel", "*plain*"]


def needs_parsl() -> None:
    pytest.importorskip("parsl", reason="Parsl is not installed: the extra `cluster` brings it")


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy project with a suite of four cases, whose kernel is slow where `slow` lies in the project."""
    body = "time.sleep(0.02 if os.path.exists('slow') else 0)"
    run_bench.add_kernel(toy_project, "plain", body)
    lines = ['[suite]\nname = "many"\ndescription = "for an engine"\n']
    lines += [f'[[case]]\nname = "c{one}"\nop = "scale"\nparams = {{ size = {64 * (one + 1)} }}\n' for one in range(CASES)]
    (toy_project / "suites" / "many.toml").write_text("\n".join(lines))
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    return toy_project


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "fusebench", "run", *OPTIONS, *options]


ONE_THREAD = """
from parsl.config import Config
from parsl.executors import ThreadPoolExecutor

config = Config(executors=[ThreadPoolExecutor(max_threads=1)], strategy="none", initialize_logging=False)
"""


@pytest.fixture
def in_process(fusebench: Fusebench, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs of shards happen in this process, with answers for their workers; the options of each."""
    asked: list[list[str]] = []

    def run(options: list[str], where: str, folder: Path, variables: Any) -> int:
        asked.append(list(options))
        outcome = fusebench("run", *options, "--out", str(folder))
        (folder / shard_task.LOG_FILE).write_text(outcome.output)
        return int(outcome.exit_code)

    monkeypatch.setattr(shard_task, "_run", run)
    monkeypatch.setattr("fusebench.report.run.pages.write_views", lambda *_: None)
    return asked


def outcome_of(project: Path, *options: str) -> tuple[int, str]:
    """The exit code and the output of the command, which may start runs of its own in another thread."""
    from fusebench.cli.main import app

    out = StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            app(["run", *OPTIONS, "--on", "engine.py", *options], prog_name="fusebench")
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_an_engine_measures_every_shard_and_its_record_is_one(project: Path, in_process: list[list[str]]) -> None:
    needs_parsl()
    (project / "engine.py").write_text(ONE_THREAD)
    code, said = outcome_of(project, "--shards", "2")
    assert code == ExitCode.PASS, said
    (folder,) = (project / "results" / "runs").glob("[!.]*")
    found = read_run(folder)
    assert sorted(one.case.name for one in found.cases) == ["c0", "c1", "c2", "c3"]
    assert [len(found.parts), found.complete] == [2, True]


def test_a_number_of_shards_without_an_engine_is_refused(fusebench: Fusebench, project: Path) -> None:
    """Planted defect: without `--on` the option did nothing."""
    outcome = fusebench("run", *OPTIONS, "--shards", "2")
    assert (outcome.exit_code, "--shards belongs to --on" in outcome.stderr) == (ExitCode.USAGE, True), project


@pytest.mark.usefixtures("workers")
def test_the_whole_is_kept_here_and_judged_by_the_baseline_of_the_store(
    fusebench: Fusebench, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusebench.report.run.pages.write_views", lambda *_: None)
    for number in (1, 2):
        fusebench("run", *OPTIONS, "--shard", f"{number}/2", "--out", "shards")
    shards = sorted((project / "shards").glob("[!.]*"))
    monkeypatch.setattr("fusebench.fleet.cluster.run_on_engine", lambda *_: shards)
    store = tmp_path / "store"
    store.mkdir()
    at = ["--results", store.as_uri()]
    whole = fusebench("run", *OPTIONS, "--on", "local", *at)
    assert whole.exit_code == ExitCode.PASS, whole.output
    (first,) = (project / "results" / "runs").glob("[!.]*")
    assert [one.name for one in (store / "runs").iterdir()] == [first.name]
    assert fusebench("baseline", "promote", "latest", "--force", *at).exit_code == ExitCode.PASS
    fusebench("run", *OPTIONS, "--on", "local", *at)
    (second,) = set((project / "results" / "runs").glob("[!.]*")) - {first}
    reasons = [one.verdict.reason for one in read_run(second).results if one.verdict is not None]
    assert reasons
    assert not any("no baseline is stored" in reason for reason in reasons)


def promoted(fusebench: Fusebench, project: Path, workers: FakeWorkers, plain_us: float, *at: str) -> None:
    """Promote a run whose kernel takes `plain_us`, in the project's own results or those that `at` names."""
    workers.timed = lambda task: measured(task, plain_us)
    run = fusebench("run", *OPTIONS, "--no-confirm", *at).output.rstrip().rpartition("run: ")[2].split()[0]
    done = fusebench("baseline", "promote", run, "--force", "--reason", "planted", *at)
    assert done.exit_code == ExitCode.PASS, done.output


def shards_of(project: Path) -> list[Run]:
    return [read_run(file.parent) for file in (project / "results" / "runs").glob(".on_engine_*/shards/*/run.json")]


def test_a_shard_is_confirmed_and_judged_by_the_baseline_and_the_margin_of_the_whole(
    fusebench: Fusebench, project: Path, tmp_path: Path, in_process: list[list[str]], workers: FakeWorkers
) -> None:
    needs_parsl()
    (project / "engine.py").write_text(ONE_THREAD)
    store = tmp_path / "store"
    store.mkdir()
    at = ["--results", store.as_uri()]
    promoted(fusebench, project, workers, 2.0, *at)
    promoted(fusebench, project, workers, 1.0)  # planted: by the project's own baseline, every kernel of the shards is twice as slow
    shutil.rmtree(project / "results" / "runs")
    workers.timed = lambda task: measured(task, 2.0)
    workers.asked_again.clear()
    code, said = outcome_of(project, "--shards", "2", *at)
    assert code == ExitCode.PASS, said
    assert [one.exit_code for one in shards_of(project)] == [ExitCode.PASS] * 2
    assert workers.asked_again == [], "nothing is a suspect by the store's baseline"
    shutil.rmtree(project / "results" / "runs")
    # Planted: slower than the baseline, by less than the margin of the command.
    workers.timed = lambda task: measured(task, 2.8)
    assert outcome_of(project, "--shards", "2", "--margin", "0.9", *at)[0] == ExitCode.PASS
    assert [one.exit_code for one in shards_of(project)] == [ExitCode.PASS] * 2
    assert workers.asked_again == []


def test_a_shard_is_judged_by_the_run_that_is_named(
    fusebench: Fusebench, project: Path, in_process: list[list[str]], workers: FakeWorkers
) -> None:
    needs_parsl()
    (project / "engine.py").write_text(ONE_THREAD)
    promoted(fusebench, project, workers, 2.0)
    workers.timed = lambda task: measured(task, 1.0)
    fusebench("run", *OPTIONS, "--no-confirm", "--out", "faster")
    (faster,) = (project / "faster").iterdir()
    workers.timed = lambda task: measured(task, 2.0)
    assert outcome_of(project, "--shards", "2", "--baseline", "faster/" + faster.name)[0] == ExitCode.REGRESSION
    assert [one.exit_code for one in shards_of(project)] == [ExitCode.REGRESSION] * 2
    (faster / "run.json").write_text("{")
    in_process.clear()
    assert outcome_of(project, "--shards", "2", "--baseline", "faster/" + faster.name)[0] == ExitCode.USAGE
    assert in_process == [], "a baseline that cannot be read is found before anything is measured"


def test_baselines_that_are_too_large_for_an_engine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "baselines" / "board"
    kept.mkdir(parents=True)
    for name in ("run.json", "report.md", ".run.json.next", "samples.parquet"):
        (kept / name).write_bytes(b"x" * 100)
    options = shard_results.options_of_results(packed_results(tmp_path, kept), tmp_path / "there")
    found = {file.relative_to(tmp_path / "there").as_posix() for file in (tmp_path / "there").rglob("*") if file.is_file()}
    assert found == {f"{where}/{name}" for where in ("baselines/board", "named_baseline") for name in ("run.json", "samples.parquet")}
    assert options == ["--results", str(tmp_path / "there"), "--baseline", str(tmp_path / "there" / "named_baseline")]
    monkeypatch.setattr(shard_results, "MOST_BYTES", 199)
    with pytest.raises(UsageError, match=r"the largest file is baselines/board/\w+\.\w+; give --results"):
        packed_results(tmp_path)


def test_a_shard_that_is_lost_is_tried_again(project: Path, in_process: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    needs_parsl()
    (project / "engine.py").write_text(ONE_THREAD)
    run, failures = shard_task._run, [ExitCode.DEVICE_UNFIT, ExitCode.FAULT]

    def at_first_unfit(options: list[str], where: str, folder: Path, variables: Any) -> int:
        (folder / shard_task.LOG_FILE).touch()
        return int(failures.pop()) if failures else run(options, where, folder, variables)

    monkeypatch.setattr(shard_task, "_run", at_first_unfit)
    code, said = outcome_of(project, "--shards", "2")
    assert code == ExitCode.PASS, said
    (folder,) = (project / "results" / "runs").glob("[!.]*")
    assert len(read_run(folder).cases) == CASES


def test_a_shard_that_stays_lost_is_named_and_the_others_are_kept(
    project: Path, in_process: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_parsl()
    (project / "engine.py").write_text(ONE_THREAD)
    run = shard_task._run

    def unfit(options: list[str], where: str, folder: Path, variables: Any) -> int:
        (folder / shard_task.LOG_FILE).write_text("error: busy\n")
        return int(ExitCode.DEVICE_UNFIT) if "2/2" in options else run(options, where, folder, variables)

    monkeypatch.setattr(shard_task, "_run", unfit)
    code, said = outcome_of(project, "--shards", "2")
    assert code == ExitCode.DEVICE_UNFIT
    assert "shards 2/2 could not be measured; the others are kept in" in said
    assert "--shard 2/2" in said
    (kept,) = (project / "results" / "runs").glob(".on_engine_*/shards/*")
    assert read_run(kept).shard == "1/2"


@pytest.mark.exhaustive
def test_shards_on_local_workers_make_one_record(project: Path) -> None:
    needs_parsl()
    done = subprocess.run(command("--on", "local:2"), cwd=project, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == ExitCode.PASS, done.stdout + done.stderr
    found = read_run(Path(done.stdout.rstrip().rpartition("run: ")[2]))
    assert (found.complete, sorted(one.case.name for one in found.cases)) == (True, ["c0", "c1", "c2", "c3"])
    assert len(found.parts) == 2
    assert "shard 1/2 is measured" in done.stderr


@pytest.mark.exhaustive
def test_a_worker_that_is_killed_costs_no_case(project: Path) -> None:
    needs_parsl()
    import psutil

    (project / "slow").touch()
    with subprocess.Popen(command("--on", "local:2"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 120
        killed = False
        while not killed and time.monotonic() < deadline and running.poll() is None:
            for one in psutil.process_iter():
                try:
                    line = one.cmdline()
                    if "--shard" in line and str(project) in line[-1] and list(project.rglob("*.case")):
                        one.parent().kill()  # Parsl's worker, and not what it started
                        killed = True
                        break
                except psutil.Error:
                    continue
            time.sleep(0.1)
        out, err = running.communicate(timeout=200)
    assert killed
    assert running.returncode == ExitCode.PASS, out + err
    found = read_run(Path(out.rstrip().rpartition("run: ")[2]))
    assert sorted(one.case.name for one in found.cases) == ["c0", "c1", "c2", "c3"]


def test_a_task_that_is_run_again_goes_on_with_what_was_kept(
    project: Path, fusebench: Fusebench, tmp_path: Path, in_process: list[list[str]], workers: FakeWorkers
) -> None:
    out = tmp_path / "out"

    def stop(task: Any) -> Any:
        if len(workers.measurements) > 1:
            raise KeyboardInterrupt
        return measured(task, 2.0)

    workers.timed = stop
    assert fusebench("run", *OPTIONS, "--shard", "1/2", "--out", str(out)).exit_code == 130
    workers.timed = lambda task: measured(task, 2.0)
    content = measure_shard([*OPTIONS, "--shard", "1/2"], str(project), str(out), {}, NOTHING)
    found = read_run(unpacked(content, tmp_path / "unpacked"))
    assert [found.complete, len(found.cases), found.shard] == [True, CASES // 2, "1/2"]
    assert len(found.resumed_from) == 1
    assert [one[0] for one in in_process] == ["--resume"]
    in_process.clear()
    assert read_run(unpacked(measure_shard(OPTIONS, str(project), str(out), {}, NOTHING), tmp_path / "again")).id == found.id
    assert in_process == [], "a complete shard is not measured again"


@pytest.mark.parametrize(("code", "error"), [(ExitCode.DEVICE_UNFIT, ShardError), (ExitCode.USAGE, ShardRefusedError)])
def test_a_shard_that_was_not_measured_says_why(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ExitCode, error: type[Exception]
) -> None:
    def run(options: list[str], where: str, folder: Path, variables: Any) -> int:
        (folder / shard_task.LOG_FILE).write_text("error: planted\n")
        return int(code)

    monkeypatch.setattr(shard_task, "_run", run)
    with pytest.raises(error, match=f"exit code {int(code)}: error: planted"):
        measure_shard(OPTIONS, str(project), str(tmp_path / "out"), {}, NOTHING)


def test_a_run_ends_with_the_worker_that_started_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "from fusebench.fleet.shard_task import _end_with_parent\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], preexec_fn=_end_with_parent)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    for _ in range(500):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail("it outlived the worker")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "found no such file; expected `local`, `local:N`, or a Python file"),
        ("config = 3", "defines no `config = parsl.config.Config(...)`, found 3"),
        ("raise ValueError('broken')", "cannot be run: ValueError: broken"),
        ("from parsl.config import Config\nconfig = Config()", "say by --shards N in how many parts"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(fusebench: Fusebench, project: Path, content: str | None, said: str) -> None:
    needs_parsl()
    if content is not None:
        (project / "engine.py").write_text(content)
    outcome = fusebench("run", *OPTIONS, "--on", "engine.py")
    assert outcome.exit_code == ExitCode.USAGE
    assert said in outcome.stderr


def test_an_engine_that_is_not_installed_is_named(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one == "parsl" or one.startswith("parsl.")]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.partition(".")[0] == "parsl":
                raise ModuleNotFoundError(f"No module named {name!r}", name="parsl")

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    outcome = fusebench("run", *OPTIONS, "--on", "local")
    assert outcome.exit_code == ExitCode.USAGE
    assert "the package parsl" in outcome.stderr
    assert "[cluster]" in outcome.stderr
    assert "shards and the engine's logs" not in outcome.stderr, "no such folder is left"


def test_a_kernel_that_nobody_knows_is_refused_before_the_engine_starts(
    fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster, the shards would wait in a queue first."""
    started: list[Any] = []
    monkeypatch.setattr("fusebench.fleet.cluster.run_on_engine", lambda *request: started.append(request) or [])
    outcome = fusebench("run", "--suite", "many", "--device", "cpu", "--kernel", "plian", "--on", "local")
    assert outcome.exit_code == ExitCode.USAGE
    assert "unknown kernel 'plian'" in outcome.stderr
    assert not started, project


def test_options_that_cannot_stand_beside_an_engine_are_refused(fusebench: Fusebench, project: Path) -> None:
    outcome = fusebench("run", *OPTIONS, "--on", "local", "--shard", "1/2")
    assert outcome.exit_code == ExitCode.USAGE
    assert "--shard cannot stand beside it" in outcome.stderr


def test_the_options_of_a_shard_are_those_of_the_command(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def measured(request: Any, reporter: Any) -> list[Path]:
        seen.append(request)
        raise UsageError("far enough")

    monkeypatch.setattr("fusebench.fleet.cluster.run_on_engine", measured)
    fusebench("run", *OPTIONS, "--on", "local:3", "--no-confirm", "--json", "--out", "elsewhere", "--margin", "0.1")
    (request,) = seen
    assert sorted(request.command) == sorted([*OPTIONS, "--no-confirm", "--margin", "0.1"])
