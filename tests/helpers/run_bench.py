"""A project whose kernels run on a CPU, and answers for its worker processes, for the tests of `run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, Measured, TimeTask
from fusebench.schema import Accuracy, Sample

KERNEL = """
import os
import time

from fusebench import kernel


@kernel("scale", "{name}", version=1, role="fused", language="torch")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""
QUICK = ["run", "--suite", "scale", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2"]
"""The smallest run there can be."""


def add_kernel(project: Path, name: str, body: str = "pass") -> None:
    (project / "kernels" / "scale" / f"{name}.py").write_text(KERNEL.replace("{name}", name).replace("{body}", body))


RIGHT = Accuracy(
    passed=True, contract="close(1.5x split)", rms_error=0.0, max_error=0.0, mean_error=0.0, split_rms_error=0.0,
    split_max_error=0.0, equal_to_split=1.0, within_loose_tolerance=True, draws=1, elements=10**9, seed=1,
)  # fmt: skip
"""What every check finds."""


@pytest.fixture
def project(toy_project: Path) -> Path:
    """The toy project with `scale/plain@1`, which runs on a CPU."""
    add_kernel(toy_project, "plain")
    return toy_project


class FakeWorkers:
    """Answers for the worker processes."""

    def __init__(self) -> None:
        self.tasks: list[CheckTask | TimeTask] = []
        self.timed: Callable[[TimeTask], Measured | Failure] = lambda task: measured(task, 2.0)
        self.timed_again: Callable[[TimeTask], Measured | Failure] | None = None
        """What fresh processes answer, where that is something else."""
        self.asked_again: list[TimeTask] = []
        """What fresh processes were asked."""

    def ask(self, task: CheckTask | TimeTask, on_progress: Any = None) -> Checked | Measured | Failure:
        self.tasks.append(task)
        if isinstance(task, TimeTask):
            return self.timed(task)
        return Checked(accuracy=RIGHT)

    def fresh(self, count: int) -> list[FreshWorker]:
        return [FreshWorker(self) for _ in range(count)]

    @property
    def measurements(self) -> list[TimeTask]:
        return [task for task in self.tasks if isinstance(task, TimeTask)]


class FreshWorker:
    """Answers for a fresh process."""

    def __init__(self, workers: FakeWorkers) -> None:
        self._workers = workers

    def ask(self, task: TimeTask, on_progress: Any = None) -> Measured | Failure:
        self._workers.asked_again.append(task)
        return (self._workers.timed_again or self._workers.timed)(task)

    def start(self) -> None: ...

    def until_ready(self) -> None: ...

    def dismiss(self) -> None: ...

    def stop(self) -> None: ...


def measured(task: TimeTask, plain_us: float) -> Measured:
    times = {"scale/plain@1": plain_us}
    samples = [
        Sample(case=task.case.key, arm=arm, replicate=replicate, round=0, position=0, span_ns=span, busy_ns=span, kernels=1)
        for arm in ("copy", "stream", "control", *task.kernels)
        for replicate in range(task.plan.replicates)
        for span in (round(1000 * times.get(arm, 4.0)) + replicate,)
    ]
    return Measured(
        samples=samples, host_us={}, extra_memory_bytes={}, timer="host", timer_fallback="", warm_up={}, seconds=0.1, cut_short=False,
        timer_retries=0,
    )  # fmt: skip


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fake = FakeWorkers()
    monkeypatch.setattr(WorkerProcess, "ask", lambda self, task, on_progress=None: fake.ask(task, on_progress))
    monkeypatch.setattr(WorkerPool, "_new", lambda self, count: fake.fresh(count))
    return fake


def only_run(project: Path) -> Path:
    (folder,) = (project / "results" / "runs").iterdir()
    return folder
