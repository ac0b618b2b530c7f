"""Kernels of the toy op that fail in every way, and sessions over workers that no process stands behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusebench.device import Device
from fusebench.registry import Collection, load_collection
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import WorkerSetup
from fusebench.schema import Case

TOY_KERNELS = Path(__file__).parents[1] / "toy_project" / "kernels"

HEAD = """
import ctypes
import os
import sys
import time

from fusebench import kernel


class CompilationError(Exception):
    pass


def being_timed():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "time_calls":
        frame = frame.f_back
    return frame is not None
"""

BODIES = {
    "good": "x.mul_(factor)",
    "wrong": "x.mul_(factor + 0.5)",
    "raises": 'raise ValueError("planted")',
    "exits": "os._exit(7)",
    "leaves": "sys.exit(3)",
    "segfaults": "ctypes.string_at(0)",
    "sleeps": "time.sleep(1000)",
    "out_of_memory": 'raise MemoryError("planted")',
    "out_of_memory_below": """
    try:
        raise MemoryError("planted")
    except MemoryError as error:
        raise RuntimeError("wrapped") from error""",
    "does_not_compile": 'raise CompilationError("at 3:7: planted")',
    "tells_interpreter": "raise KeyError(os.environ.get('TRITON_INTERPRET', 'absent'))",
    "raises_when_timed": """
    if being_timed():
        raise ValueError("planted for later")
    x.mul_(factor)""",
    "dies_when_timed": """
    if being_timed():
        os._exit(9)
    x.mul_(factor)""",
    "rests_when_timed": """
    if not being_timed():
        x.mul_(factor)""",
}
"""Bodies of the kernels `scale/NAME@1`, one file each, called `NAME.py`."""


def kernel_source(name: str, body: str, role: str = "fused") -> str:
    """A kernel file.  Its body is the file's end, so that the failing line is the last one."""
    return f'{HEAD}\n\n@kernel("scale", "{name}", version=1, role="{role}", language="torch")\ndef {name}(x, *, factor=2.0):\n    {body}\n'


@pytest.fixture(scope="session")
def source() -> Callable[..., str]:
    """`source(name, body)`: the text of a kernel file."""
    return kernel_source


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernels folder with the toy op, its split chain, and every kernel of `BODIES`."""
    folder = tmp_path_factory.mktemp("kernels")
    shutil.copytree(TOY_KERNELS, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for name, body in BODIES.items():
        (folder / "scale" / f"{name}.py").write_text(kernel_source(name, body))
    return folder


@pytest.fixture(scope="session")
def collection(root: Path) -> Collection:
    loaded = load_collection([root], entry_points=False)
    assert loaded.problems == []
    return loaded


@pytest.fixture(scope="session")
def case() -> Case:
    return Case(suite="scale", name="even", op="scale", params={"size": 4096}, weight=2.0)


@pytest.fixture(scope="session")
def cpu() -> Device:
    return Device(kind="cpu", name="Toy CPU")


@pytest.fixture(scope="session")
def worker(root: Path) -> Iterator[WorkerProcess]:
    """One worker process for all tests; those that kill it get the next one."""
    with WorkerProcess(WorkerSetup(roots=(root,), device="cpu"), silence_s=60.0) as process:
        yield process


class RecordingReporter:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def begin(self) -> None:
        self.said.append(("begin",))

    def case(self, number: int, cases: int, case: Case, shape: str) -> None:
        self.said.append(("case", number, cases, case.key, shape))

    def step(self, text: str, done: int = 0, total: int = 0) -> None:
        self.said.append(("step", text, done, total))

    def result(self, result: Any) -> None:
        self.said.append(("result", result.kernel, result.status))

    def note(self, text: str) -> None:
        self.said.append(("note", text))

    def end(self) -> None:
        self.said.append(("end",))


@pytest.fixture
def reporter() -> RecordingReporter:
    return RecordingReporter()
