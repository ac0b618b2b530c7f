"""The profiled process, run in this one and on a CPU: what lies inside and outside of the profiled range."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.counters import child
from fusebench.counters.task import Called, CaptureTask, Doing, Raised, read_messages, write_message
from fusebench.schema import Case

TOY_PROJECT = Path(__file__).parents[1] / "toy_project"
CASE = Case(suite="scale", name="even", op="scale", params={"size": 8})

KERNEL = """
import sys

from fusebench import kernel

SEEN = sys.modules.setdefault("seen_by_the_test_of_child", [])


@kernel("scale", "watcher", version=1, role="fused", language="torch")
def watcher(x, *, factor=2.0):
    SEEN.append(x.clone())
    x.mul_(factor)


@kernel("scale", "raiser", version=1, role="fused", language="torch")
def raiser(x, *, factor=2.0):
    raise ValueError("of no use")
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    root = tmp_path / "kernels"
    shutil.copytree(TOY_PROJECT / "kernels", root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "scale" / "watched.py").write_text(KERNEL)
    return root


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What every call of `watcher` was given."""
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "seen_by_the_test_of_child", calls)  # type: ignore[arg-type]
    return calls


def task(kernels: Path, kernel: str = "scale/watcher@1", *, kernel_roots: Path | None = None) -> CaptureTask:
    return CaptureTask(
        case=CASE,
        kernel=kernel,
        roots=(str(kernels),),
        kernel_roots=(str(kernel_roots or kernels),),
        device="cpu",
        seed=3,
        diary=str(kernels.parent / "diary"),
    )


def test_one_call_is_in_the_range_and_every_call_gets_the_same_inputs(
    kernels: Path, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[tuple[int, int]] = []

    @contextmanager
    def range_(device: object) -> Iterator[None]:
        before = len(seen)
        yield
        inside.append((before, len(seen)))

    monkeypatch.setattr(child, "profiled", range_)
    said: list[str] = []
    child.perform(task(kernels), said.append)
    assert inside == [(3, 4)], "three calls before, one within"
    assert all(bool((one == seen[0]).all()) for one in seen), "an in-place op's input is restored before every call"
    assert said == [
        "loading the kernels",
        "compiling and calling it for the first time",
        "calling it again before the capture",
        "reading its counters",
    ]


def test_the_detector_of_unrestored_inputs_detects(kernels: Path, seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the restoring, the same test would see other inputs."""
    from dataclasses import replace

    placed = child._placed
    monkeypatch.setattr(child, "_placed", lambda one, device: replace(placed(one, device), restore=lambda: None))
    child.perform(task(kernels), lambda what: None)
    assert not bool((seen[1] == seen[0]).all())


def test_what_is_raised_is_written_down_with_the_kernels_own_line(kernels: Path) -> None:
    file = kernels.parent / "task.json"
    file.write_bytes(msgspec.json.encode(task(kernels, "scale/raiser@1")))
    assert child.main([str(file)]) == 1
    last = read_messages(kernels.parent / "diary")[-1]
    assert last == Raised("ValueError: of no use (watched.py, line 17)")


def test_the_base_kernel_gets_the_inputs_of_head(kernels: Path, seen: list[Any], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(TOY_PROJECT / "kernels", mine, ignore=shutil.ignore_patterns("__pycache__"))
    child.perform(task(mine, kernel_roots=kernels), lambda what: None)
    assert len(seen) == 4, "the kernel that only base has was called"


def test_as_a_process_it_does_the_same(kernels: Path) -> None:
    file = kernels.parent / "task.json"
    file.write_bytes(msgspec.json.encode(task(kernels, "scale/split@1")))
    command = [sys.executable, "-P", "-m", "fusebench.counters.child", str(file)]
    subprocess.run(command, env=dict(os.environ), check=True, timeout=120)
    messages = read_messages(kernels.parent / "diary")
    assert messages[0] == Doing("loading the kernels")
    assert messages[-1] == Called()


def test_half_a_line_is_no_message_yet(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    assert read_messages(diary) == []
    write_message(diary, Doing("one"))
    with diary.open("ab") as stream:
        stream.write(b'{"type":"cal')
    assert read_messages(diary) == [Doing("one")]
