"""`ab`, `ncu` and `calibrate` that are ended at any moment: what is left is readable, and --resume completes an equal record."""

from __future__ import annotations

import functools
import resource
import shlex
import shutil
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
import pytest

from fusebench.cli.shared import selection
from fusebench.counters.capturing import CaptureOutcome
from fusebench.counters.records import CaptureStatus
from fusebench.runner.ab.command import declared_base
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.process import WorkerProcess
from fusebench.schema import ExitCode
from fusebench.store.calibrations import read_calibration, seal_of_calibration
from fusebench.store.comparison_folder import read_comparison, read_comparison_samples, seal_of_comparison
from fusebench.store.counter_folder import read_counters, seal_of_counters
from helpers import calibration_bench, comparison_bench, ncu_bench
from helpers.kills import ended, in_child, killed_at_random, seconds_of
from helpers.run_bench import add_kernel

Fusebench = Callable[..., Any]
CASES = 5
STEP_S = 0.004
"""What each task of a worker takes."""
before_task: list[Callable[[Any], None]] = []
"""Called with each task of a worker."""


class Killable(Protocol):
    """A command with its stored record."""

    command: list[str]

    def content(self) -> Any:
        """What must be the same however often the command was killed; the record is complete."""

    def require_readable(self) -> None:
        """Everything that is left of a command that was killed can be read, and fits its seal."""

    def resumable(self) -> bool:
        """Whether something is left that --resume goes on with."""

    def forget(self) -> None:
        """Remove every record."""


def began(task: Any, *more: object) -> Random:
    """A worker's task begins; what it measures depends on the task alone."""
    time.sleep(STEP_S)
    for hook in before_task:
        hook(task)
    said = [task.case.name, type(task).__name__, *(arm.name for arm in getattr(task, "arms", ())), *map(str, more)]
    return Random(zlib.crc32("|".join(said).encode()))


def with_workers(monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any, int], Any]) -> None:
    """Workers answer as `ask` does, which gets the task and the number of a fresh process, or 0."""

    class Fresh:
        def __init__(self, number: int) -> None:
            self.number = number

        def ask(self, task: Any, on_progress: Any) -> Any:
            return ask(task, self.number)

        def start(self) -> None: ...

        def until_ready(self) -> None: ...

        def dismiss(self) -> None: ...

        def stop(self) -> None: ...

    monkeypatch.setattr(WorkerProcess, "ask", lambda self, task, on_progress=None: ask(task, 0))
    monkeypatch.setattr(WorkerProcess, "start", lambda self: None)
    monkeypatch.setattr(WorkerPool, "_new", lambda self, count: [Fresh(number + 1) for number in range(count)])


def write_suite(project: Path) -> None:
    lines = ['[suite]\nname = "many"\ndescription = "for kills"\n']
    lines += [f'[[case]]\nname = "c{one}"\nop = "scale"\nparams = {{ size = {64 * (one + 1)} }}\n' for one in range(CASES)]
    lines += ['[[case]]\nname = "again"\nop = "scale"\nparams = { size = 64 }\n']
    (project / "suites" / "many.toml").write_text("\n".join(lines))


class Ab:
    """`fusebench ab` of a kernel that is 5 % slower in every second case, against a folder."""

    def __init__(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = project / "results" / "runs"
        for name in ("plain", "other"):
            add_kernel(project, name)
        shutil.copytree(project / "kernels", project / "base")
        add_kernel(project, "plain", "pass  # changed")
        write_suite(project)
        fake = comparison_bench.FakeWorker()

        def ask(task: Any, process: int) -> Any:
            fake.rng = began(task, process)
            fake.factors = {"scale/plain@1": 1.5} if task.case.name in ("c1", "c3") else {}
            return fake.ask_fresh(task, process) if process else fake.ask(task, None)

        with_workers(monkeypatch, ask)
        base = functools.cache(lambda: declared_base([project / "base"], ()))  # its loader imports torch, once
        monkeypatch.setattr("fusebench.runner.ab.command.declared_base", lambda *_: base())
        self.command = ["ab", "--suite", "many", "--device", "cpu", "--cache", "warm", "--base-kernels", "base", "--no-evidence"]

    def folders(self) -> list[Path]:
        return sorted(self.runs.glob("[!.]*_ab"), key=lambda one: (one / "ab.json").stat().st_mtime_ns) if self.runs.is_dir() else []

    def content(self) -> Any:
        folder = self.folders()[-1]
        found = read_comparison(folder)
        assert found.complete
        kernels = [
            msgspec.structs.replace(
                one,
                **{
                    name: msgspec.structs.replace(accuracy, seed=0)
                    for name in ("new_accuracy", "old_accuracy")
                    if (accuracy := getattr(one, name)) is not None
                },
            )
            for one in found.kernels
        ]
        return found.cases, kernels, found.aa_pairs, found.looks, found.exit_code, read_comparison_samples(folder)

    def require_readable(self) -> None:
        for folder in self.folders():
            assert seal_of_comparison(folder).altered == ""
            read_comparison(folder)
            read_comparison_samples(folder)

    def resumable(self) -> bool:
        return bool(self.folders())

    def forget(self) -> None:
        shutil.rmtree(self.runs, ignore_errors=True)


class Ncu:
    """`fusebench ncu` of two kernels."""

    def __init__(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = project / "results" / "runs"
        for version in (1, 2):
            ncu_bench.add_kernel(project, "twin", version=version)
        write_suite(project)

        def capture(case: Any, kernel: str, *, report: Path, **_: Any) -> CaptureOutcome:
            time.sleep(STEP_S)
            for hook in before_task:
                hook(msgspec.defstruct("Task", ["case"])(case))
            report.write_text(f"{case.key} {kernel}")
            return CaptureOutcome(status=CaptureStatus.CAPTURED, launches=())

        monkeypatch.setattr("fusebench.runner.count.strategy.capture", capture)
        # All kernels instead of those of the op: the answers are kept, and the loader, which imports torch, is started once.
        load = selection.with_kernels
        monkeypatch.setattr(selection, "with_kernels", lambda chosen, *, narrow, silence_s: load(chosen, silence_s=silence_s))
        self.command = ["ncu", "--suite", "many"]

    def folders(self) -> list[Path]:
        return sorted(self.runs.glob("[!.]*_ncu"), key=lambda one: (one / "ncu.json").stat().st_mtime_ns) if self.runs.is_dir() else []

    def content(self) -> Any:
        folder = self.folders()[-1]
        found = read_counters(folder)
        assert found.complete
        captures = [msgspec.structs.replace(one, seconds=0.0) for one in found.captures]
        return found.cases, captures, [(folder / one.report).read_text() for one in captures if one.report]

    def require_readable(self) -> None:
        for folder in self.folders():
            assert seal_of_counters(folder).altered == ""
            for one in read_counters(folder).captures:
                assert not one.report or (folder / one.report).is_file()

    def resumable(self) -> bool:
        return bool(self.folders())

    def forget(self) -> None:
        shutil.rmtree(self.runs, ignore_errors=True)


class Calibrate:
    """`fusebench calibrate` with two targets in three passes."""

    def __init__(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calibrations = project / "results" / "calibration"
        fake = calibration_bench.FakeWorker()

        def ask(task: Any, process: int) -> Any:
            fake.random = began(task, process)
            return fake.ask(task, None)

        with_workers(monkeypatch, ask)
        self.command = ["calibrate", "--device", "cpu", "--quick", "--passes", "3", "--force"]

    def content(self) -> Any:
        (file,) = self.calibrations.glob("*.json")
        found = read_calibration(file)
        assert found is not None
        note = msgspec.structs.replace(found.note, created="")
        return len(found.sessions), found.trials, found.ground_truths, found.components, note, found.warnings

    def unfinished(self) -> list[Path]:
        return list((self.calibrations / "unfinished").glob("*"))

    def require_readable(self) -> None:
        for folder in (self.calibrations, *(one / "calibration" for one in self.unfinished())):
            for file in folder.glob("*.json"):
                assert seal_of_calibration(file).altered == ""
                assert read_calibration(file) is not None

    def resumable(self) -> bool:
        return any((one / "state").is_file() for one in self.unfinished())

    def forget(self) -> None:
        shutil.rmtree(self.calibrations, ignore_errors=True)


@pytest.fixture(params=["ab", "ncu", "calibrate"])
def killable(request: pytest.FixtureRequest, toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killable]:
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    if request.param == "ncu":
        request.getfixturevalue("with_gpu")
        request.getfixturevalue("fake_ncu")
    before_task.clear()
    yield {"ab": Ab, "ncu": Ncu, "calibrate": Calibrate}[request.param](toy_project, monkeypatch)
    before_task.clear()


def complete(fusebench: Fusebench, killable: Killable) -> None:
    """Go on with what is left, or begin anew where nothing is."""
    outcome = fusebench(*killable.command, *(["--resume", "latest"] if killable.resumable() else []))
    assert "is complete" in outcome.output or outcome.exit_code in (ExitCode.PASS, ExitCode.REGRESSION, ExitCode.UNDECIDED), outcome.output


def kill_and_resume(fusebench: Fusebench, killable: Killable, expected: Any, kills: int, *signals: signal.Signals) -> None:
    def work() -> int:
        return 0 if fusebench(*killable.command).exit_code in (0, 1, 4) else 9

    killable.forget()
    longest = seconds_of(work)
    for number in range(kills):
        killable.forget()
        killed_at_random(work, longest, *signals)
        killable.require_readable()
        complete(fusebench, killable)
        killable.require_readable()
        assert killable.content() == expected, number


def fill_disk_and_resume(fusebench: Fusebench, killable: Killable, expected: Any, said: Path) -> None:
    left = [20]

    def fill(task: Any) -> None:
        left[0] -= 1
        if not left[0] if isinstance(killable, Calibrate) else task.case.name == "c2":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))

    def work() -> int:
        before_task.append(fill)
        outcome = fusebench(*killable.command)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        said.write_text(outcome.stderr)
        return int(outcome.exit_code)

    killable.forget()
    assert ended(in_child(work)) == ExitCode.USAGE, said.read_text()
    assert "File too large; what was written there before stays; make space there, and go on with `fusebench" in said.read_text()
    assert "Traceback" not in said.read_text()
    killable.require_readable()
    assert killable.resumable()
    complete(fusebench, killable)
    assert killable.content() == expected


def test_a_measurement_killed_at_any_moment_or_on_a_full_disk_goes_on(fusebench: Fusebench, killable: Killable, tmp_path: Path) -> None:
    complete(fusebench, killable)  # it also imports and loads all that each child would anew
    expected = killable.content()
    kill_and_resume(fusebench, killable, expected, 1)
    kill_and_resume(fusebench, killable, expected, 1, signal.SIGINT, signal.SIGTERM)
    fill_disk_and_resume(fusebench, killable, expected, tmp_path / "said")


@pytest.mark.exhaustive
@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGINT, signal.SIGTERM)], ids=["kill", "interrupt"])
def test_a_hundred_kills(fusebench: Fusebench, killable: Killable, signals: tuple[signal.Signals, ...]) -> None:
    complete(fusebench, killable)
    kill_and_resume(fusebench, killable, killable.content(), 100, *signals)


@pytest.mark.parametrize("killable", ["ab"], indirect=True)
def test_a_measurement_is_gone_on_with_under_the_same_conditions_only(fusebench: Fusebench, killable: Ab, toy_project: Path) -> None:
    def stop(task: Any) -> None:
        if task.case.name == "c2":
            raise KeyboardInterrupt

    before_task.append(stop)
    outcome = fusebench(*killable.command)
    assert outcome.exit_code == 130
    (folder,) = killable.folders()
    assert f"go on with it by: fusebench {shlex.join([*killable.command, '--resume', str(folder)])}" in outcome.stderr
    before_task.clear()
    refused = fusebench(*killable.command, "--resume", "latest", "--margin", "0.2")
    assert (refused.exit_code, "margin, or number of selected comparisons" in refused.stderr) == (ExitCode.USAGE, True)
    add_kernel(toy_project, "plain", "pass  # changed again")
    refused = fusebench(*killable.command, "--resume", "latest")
    assert refused.exit_code == ExitCode.USAGE
    assert "results would not be of one kind: files of the kernels folders; start a new one" in refused.stderr
    record = folder / "ab.json"
    record.write_text(record.read_text().replace('"complete": false', '"complete": null'))
    refused = fusebench(*killable.command, "--resume", str(folder))
    assert refused.exit_code == ExitCode.USAGE
    record.write_text(record.read_text().replace('"complete": null', '"complete": false').replace('"id": "', '"id": "0'))
    refused = fusebench(*killable.command, "--resume", str(folder))
    assert "was altered after it was written: ab.json does not fit its seal" in refused.stderr
