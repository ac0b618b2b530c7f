"""A worker keeps a case's draws for the checks of its kernels, and gives their memory back when something else needs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, WorkerSetup
from fusebench.schema import Case, Status

pytestmark = pytest.mark.usefixtures("forked_workers")

COUNT = """
    import torch
    frame = sys._getframe()
    while frame.f_code.co_name != "_answer":
        frame = frame.f_back
    store = frame.f_locals["self"].checker._draws
    kept = 0 if store is None else sum(len(draws._kept) for draws in store._draws.values())"""
NEEDS_ROOM = f"""{COUNT}
    if kept > 1:
        raise torch.OutOfMemoryError("planted")
    x.mul_(factor)"""
ALWAYS = f"""{COUNT}
    raise torch.OutOfMemoryError("planted")"""
TELLS = f"""{COUNT}
    raise KeyError(f"{{kept}} draws")"""


@pytest.fixture
def kept(root: Path, tmp_path: Path, source: Callable[..., str]) -> Iterator[WorkerProcess]:
    """A worker whose kernels count the draws that it keeps."""
    folder = shutil.copytree(root, tmp_path / "kernels")
    for name, body in {"needs_room": NEEDS_ROOM, "always": ALWAYS, "tells": TELLS}.items():
        (folder / "scale" / f"{name}.py").write_text(source(name, body))
    with WorkerProcess(WorkerSetup(roots=(folder,), device="cpu"), silence_s=60.0) as process:
        yield process


def test_kernels_share_draws_until_memory_or_a_failure_ends_that(kept: WorkerProcess, case: Case) -> None:
    def check(name: str, seed: int = 5) -> Checked | Failure:
        reply = kept.ask(CheckTask(case=case, kernel=f"scale/{name}@1", seed=seed))
        assert isinstance(reply, Checked | Failure)
        return reply

    def draws(seed: int = 5) -> str:
        reply = check("tells", seed)
        assert isinstance(reply, Failure)
        return reply.reason

    good = check("good")
    assert isinstance(good, Checked)
    assert good.accuracy.draws > 1
    assert f"{good.accuracy.draws} draws" in draws()
    assert "1 draws" in draws(), "after a failure nothing is trusted"
    check("good")
    assert "1 draws" in draws(seed=6), "another check has draws of its own"

    check("good")
    checked = check("needs_room")
    assert isinstance(checked, Checked)
    assert checked.accuracy.passed
    failed = check("always")
    assert isinstance(failed, Failure)
    assert failed.status is Status.OUT_OF_MEMORY
