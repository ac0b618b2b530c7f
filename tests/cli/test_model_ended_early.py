"""`fusebench model` that is interrupted, or whose process dies or hangs: the record has what was measured, and names what is missing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.models import command, process_main
from fusebench.models.work import ModelTask, ModelWork
from fusebench.schema import ExitCode
from fusebench.schema.models import ModelRecord
from fusebench.store.model_folder import model_seal, read_model
from helpers.kills import ended, in_child, interrupted_lock

pytest.importorskip("diffusers")

Fusebench = Callable[..., Any]
REPOSITORY = Path(__file__).parents[2]
PARTS = ["step times", "drift", "breakdown of split", "breakdown of fused", "denoise loop"]
TINY = ("model", "flux1_dev", "--tiny", "--budget", "1")
CPU = (*TINY, "--device", "cpu")
ANSWER = "import os, pathlib, signal, sys, time; write = lambda name: os.replace(name, sys.argv[2]); "
"""Begins the code of a false measuring process; its answer lies ready."""
pytestmark = pytest.mark.usefixtures("project_folder")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What a real measuring process, which ends before its last part, leaves after each part."""
    folder = tmp_path_factory.mktemp("answers")
    asked, answer = folder / "task.json", folder / "answer.json"
    kernels = (str(REPOSITORY / "kernels"),)
    task = ModelTask(model="flux1_dev", device="cpu", variants=("split", "fused"), kernels=kernels, tiny=True, steps=1, budget_s=0.01)
    asked.write_bytes(msgspec.json.encode(task))
    found: list[bytes] = []
    write = process_main.write_file

    def write_and_note(path: Path, content: bytes) -> None:
        write(path, content)
        found.append(path.read_bytes())

    def end(*_: Any, budget_s: float, **__: Any) -> None:
        assert budget_s == pytest.approx(task.budget_s / 3)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_main, "write_file", write_and_note)
        patch.setattr("fusebench.models.work.timed_loops", end)
        with pytest.raises(SystemExit):
            process_main.main([str(asked), str(answer)])
    assert sorted(folder.iterdir()) == [answer, asked]
    return found


def _work(answer: bytes) -> ModelWork:
    return msgspec.json.decode(answer, type=ModelWork, strict=False)


def _whole(answers: list[bytes]) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(answers[-1]), "missing": []})


def _record() -> ModelRecord:
    """The only record, which is readable and sealed."""
    (folder,) = Path("results/runs").glob("[!.]*_model")
    assert model_seal(folder).altered == ""
    assert (folder / "report.md").is_file()
    return read_model(folder)


def test_each_part_is_written_before_the_next_one_begins(answers: list[bytes]) -> None:
    works = [_work(one) for one in answers]
    assert [list(one.missing) for one in works] == [PARTS[done:] for done in range(5)]
    assert [sum(site.calls for site in one.calls) for one in works] == [23] * 5
    assert [len(one.times) for one in works] == [0, 2, 2, 2, 2]
    assert [one.drift is not None for one in works] == [False, False, True, True, True]
    assert [len(one.breakdowns) for one in works] == [0, 0, 0, 1, 2]
    assert works[-1].times == works[1].times


@pytest.mark.parametrize("part", range(5), ids=PARTS)
def test_a_process_that_is_killed_in_a_part(
    fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[bytes], part: int
) -> None:
    (tmp_path / "ready").write_bytes(answers[part])
    code = f"write({str(tmp_path / 'ready')!r}); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(command, "CHILD", ("-c", ANSWER + code))
    shown = fusebench(*CPU)
    assert shown.exit_code == ExitCode.KERNEL_FAILED, shown.output
    assert shown.stdout == ""
    missing = ", ".join(PARTS[part:])
    assert f"interrupted; what was measured is kept, marked incomplete (missing: {missing})" in " ".join(shown.stderr.split())
    assert "error: the measuring process ended with status -9 and without a whole answer: nothing on stderr" in shown.stderr
    record = _record()
    assert (record.complete, list(record.missing), record.exit_code) == (False, PARTS[part:], ExitCode.KERNEL_FAILED)
    assert "status -9" in record.warnings[-1]
    assert record.times == _work(answers[part]).times
    assert f"this measurement is incomplete; missing: {missing}" in fusebench("report", record.id).stdout


def test_a_process_that_hangs(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[bytes]) -> None:
    (tmp_path / "ready").write_bytes(answers[1])
    monkeypatch.setattr(command, "CHILD", ("-c", ANSWER + f"write({str(tmp_path / 'ready')!r}); time.sleep(60)"))
    monkeypatch.setattr(command, "ANSWER_EXTRA_S", 0.5)
    shown = fusebench(*CPU)
    assert shown.exit_code == ExitCode.KERNEL_FAILED, shown.output
    assert "went on for 2 s without a whole answer" in shown.stderr
    assert list(_record().missing) == PARTS[1:]


def test_an_error_that_ctrl_c_led_to_is_no_fault_on_record(
    fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, answers: list[bytes]
) -> None:
    def stopped(*_: Any) -> command.Answer:
        try:
            interrupted_lock()
        except RuntimeError as error:
            return command.Answer(_work(answers[1]), error)

    monkeypatch.setattr(command, "_in_process", stopped)
    assert fusebench(*CPU).exit_code == 130
    record = _record()
    assert (list(record.missing), record.exit_code) == (PARTS[1:], ExitCode.UNDECIDED)
    assert not any("fault" in warning for warning in record.warnings)


class Running:
    """A command in a session of its own, whose measuring process has said by a file that it is in the middle of its work."""

    def __init__(self, fusebench: Fusebench, arguments: tuple[str, ...], folder: Path) -> None:
        self.said, self.marker = folder / "said", folder / "marker"

        def work() -> int:
            os.setsid()
            shown = fusebench(*arguments)
            self.said.write_text(shown.stderr)
            return int(shown.exit_code)

        self.pid = in_child(work)
        ends = time.monotonic() + 60
        while not self.marker.is_file():
            assert time.monotonic() < ends
            time.sleep(0.01)
        self.measuring = int(self.marker.read_text())

    def end(self, *signals: signal.Signals) -> int:
        """Send signals as a terminal does, to all processes of the session's first group; returns the exit code."""
        for one in signals:
            os.killpg(self.pid, one)
        code = ended(self.pid)
        with pytest.raises(ProcessLookupError):  # the measuring process is gone, too
            os.kill(self.measuring, 0)
        return code


@pytest.fixture
def begun(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`begun(code, *arguments)`: the command, when its measuring process has run `code` and waits."""

    def begin(code: str, *arguments: str) -> Running:
        hit = f"signal.signal(signal.SIGINT, lambda *_: pathlib.Path({str(tmp_path / 'hit')!r}).touch())"
        making, marker = str(tmp_path / "making"), str(tmp_path / "marker")
        wait = f"pathlib.Path({making!r}).write_text(str(os.getpid())); os.replace({making!r}, {marker!r}); time.sleep(60)"
        monkeypatch.setattr(command, "CHILD", ("-c", f"{ANSWER}\n{hit}\n{code}\n{wait}"))
        return Running(fusebench, arguments, tmp_path)

    yield begin
    assert not (tmp_path / "hit").exists(), "a Ctrl-C of the terminal reached the measuring process"


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT,) * 3], ids=["SIGINT", "SIGTERM", "impatient"])
def test_an_interrupted_command(
    begun: Callable[..., Running], tmp_path: Path, answers: list[bytes], signals: tuple[signal.Signals, ...]
) -> None:
    (tmp_path / "ready").write_bytes(answers[2])
    running = begun(f"write({str(tmp_path / 'ready')!r})", *CPU)
    assert running.end(*signals) == 130
    assert "interrupted; what was measured is kept, marked incomplete" in running.said.read_text()
    record = _record()
    assert (record.complete, list(record.missing)) == (False, PARTS[2:])
    assert record.drift is not None


def test_an_interruption_before_anything_was_measured(begun: Callable[..., Running]) -> None:
    running = begun("", *CPU)
    assert running.end(signal.SIGINT) == 130
    assert running.said.read_text().splitlines()[-1] == "interrupted"
    assert not Path("results").exists()


CONFIRMS = "if '\"confirm\":false' in open(sys.argv[1]).read(): write({ready!r}); sys.exit()\n{then}"
"""A measuring process that answers at once, and does something else when it confirms."""


@pytest.fixture
def gpu(with_gpu: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A command on a false GPU."""
    with_gpu()
    return (*TINY, "--device", "cuda:0")


def test_an_interruption_while_confirming_keeps_the_whole_first_process(
    begun: Callable[..., Running], gpu: tuple[str, ...], tmp_path: Path, answers: list[bytes]
) -> None:
    (tmp_path / "ready").write_bytes(_whole(answers))
    running = begun(CONFIRMS.format(ready=str(tmp_path / "ready"), then=""), *gpu)
    assert running.end(signal.SIGINT) == 130
    assert "marked incomplete (missing: confirmation in a fresh process)" in " ".join(running.said.read_text().split())
    record = _record()
    assert (record.complete, record.missing) == (False, (command.CONFIRMATION,))
    assert (record.confirmation, record.times) == (None, _work(answers[-1]).times)
    assert record.verdicts["fused"].reason.endswith("not confirmed")


def test_a_confirming_process_that_dies(
    fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, gpu: tuple[str, ...], tmp_path: Path, answers: list[bytes]
) -> None:
    (tmp_path / "ready").write_bytes(_whole(answers))
    code = CONFIRMS.format(ready=str(tmp_path / "ready"), then="os.kill(os.getpid(), 9)")
    monkeypatch.setattr(command, "CHILD", ("-c", f"{ANSWER}\n{code}"))
    shown = fusebench(*gpu)
    assert shown.exit_code == ExitCode.KERNEL_FAILED, shown.output
    record = _record()
    assert (record.complete, record.missing) == (False, (command.CONFIRMATION,))
    assert record.failures == ("confirmation: the measuring process ended with status -9 and without an answer: nothing on stderr",)
    assert "this measurement is incomplete; missing: confirmation in a fresh process" in shown.stdout
