"""A queue whose evaluator is planted, on the toy project."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusebench.cli.serving.evaluation_queue import EvaluationQueue
from fusebench.cli.shared.evaluation_work import Catalogue
from fusebench.device import Device
from fusebench.schema.evaluation import Evaluation, EvaluationStatus

SOURCE = "raise SystemExit('a server must not import a candidate')\n"


class PlantedJudge:
    """Answers with the candidate's text as its reason; waits for `go` if there is one."""

    def __init__(self, device: Any) -> None:
        self.compilers = None
        self.device, self.stopped, self.closed, self.judged = device, threading.Event(), False, 0
        self.go: threading.Event | None = None
        self.fault: Exception | None = None

    def evaluate(self, request: Any, reporter: Any = None) -> Evaluation:
        self.judged += 1
        if self.fault is not None:
            raise self.fault
        stopped = False
        if self.go is not None:
            while not self.go.wait(0.01):
                if self.stopped.is_set():
                    stopped = True
                    break
        status = EvaluationStatus.UNDECIDED if stopped else EvaluationStatus.WRONG
        return Evaluation(
            status=status,
            reason=request.file.read_text(),
            op=request.op,
            stage=request.stage,
            device=self.device.name,
            file=str(request.file),
        )

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def evaluations(toy_project: Path) -> Iterator[Callable[..., tuple[EvaluationQueue, list[PlantedJudge]]]]:
    """`evaluations(*device names)`: a queue that is entered, and the judges that it has made."""
    entered = []

    def make(*names: str, prepare: Callable[[PlantedJudge], None] = lambda judge: None) -> tuple[EvaluationQueue, list[PlantedJudge]]:
        judges: list[PlantedJudge] = []

        def judge(device: Any) -> PlantedJudge:
            judges.append(PlantedJudge(device))
            prepare(judges[-1])
            return judges[-1]

        devices = [_device(name) for name in names or ("cpu",)]
        made = EvaluationQueue(devices, Catalogue(), judge)
        entered.append(made.__enter__())
        return made, judges

    yield make
    for one in entered:
        one.close()


def _device(name: str) -> Device:
    """`cpu` or `cuda:N`."""
    if name == "cpu":
        return Device(kind="cpu", name="Toy CPU")
    return Device(kind="cuda", name="Toy GPU", index=int(name.partition(":")[2]), uuid=f"GPU-{name}")
