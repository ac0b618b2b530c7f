"""The command line's side of an evaluation: nothing of a judge is left, however it ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from fusebench.device.select import Device
from fusebench.judge.evaluation import EvaluationRequest, Evaluator
from fusebench.schema import Case
from fusebench.schema.evaluation import EvaluationStatus, Stage
from judge.bench import TOY
from judge.confinement.test_confined_process import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are ended by Linux's means")

CANDIDATE = """
import os, time
from pathlib import Path
from fusebench import kernel

@kernel("scale", "mine", version=1, role="fused", language="torch")
def mine(x, *, factor=2.0):
    x.mul_(factor)

if os.fork() == 0:  # outlives its parent, who waits for the judge to be killed
    os.setsid()
    Path("daemon").write_text(str(os.getpid()))
    time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files of this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.exhaustive  # imports torch in two processes; a quick run tests its parts in test_confined_process
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nothing_is_left_of_an_evaluation_that_is_ended(folder: Path, tmp_path: Path, how: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CANDIDATE)
    case = Case(name="c", suite="s", op="scale", params={"size": 8})
    request = EvaluationRequest(roots=(TOY,), file=file, op="scale", cases=(case,), stage=Stage.CHECK, seconds=60.0)
    with Evaluator(Device(kind="cpu", name="CPU", memory_bytes=1 << 30)) as evaluator:

        def end() -> None:
            until(lambda: any(path.read_text() for path in folder.glob("fusebench-judge-*/*/daemon")))
            if how == "stop":
                evaluator.stop()
            elif evaluator._process is not None:
                os.kill(evaluator._process.pid, signal.SIGKILL)

        ender = threading.Thread(target=end)
        ender.start()
        found = evaluator.evaluate(request)
        ender.join()
    assert found.status is (EvaluationStatus.UNDECIDED if how == "stop" else EvaluationStatus.UNFIT)
    assert not list(folder.glob("fusebench-*"))

    def theirs() -> bool:
        return any(str(folder) in _folder_of(process) for process in psutil.process_iter())

    until(lambda: not theirs())


def _folder_of(process: psutil.Process) -> str:
    try:
        return process.cwd() if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""
