"""Kernels of many cases are compiled by several processes before the checks: each case once, and again when its sources change."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device import Device
from fusebench.registry import Collection
from fusebench.runner.case_kernels import CaseKernels, case_kernels
from fusebench.runner.workers import compiling
from fusebench.runner.workers.compiling import FEWEST_CASES, compile_ahead
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Compiled, CompileTask, Failure, WorkerSetup
from fusebench.schema import Case, Status

pytestmark = pytest.mark.usefixtures("forked_workers")

FAILED = Failure(status=Status.COMPILE_ERROR, reason="planted")


class FakeWorker:
    """A worker that answers at once."""

    def __init__(self, answer: Callable[[CompileTask], Compiled | Failure]) -> None:
        self.answer = answer
        self.tasks: list[CompileTask] = []
        self.interrupted = False

    def ask(self, task: CompileTask) -> Compiled | Failure:
        self.tasks.append(task)
        return self.answer(task)

    def interrupt(self) -> None:
        self.interrupted = True


class FakePool:
    """Lends workers that answer at once."""

    def __init__(self, root: Path, answer: Callable[[CompileTask], Compiled | Failure]) -> None:
        self.device, self.roots = Device(kind="cuda", name="toy"), (root,)
        self.answer = answer
        self.lent: list[FakeWorker] = []

    @contextmanager
    def helpers(self, count: int) -> Iterator[list[FakeWorker]]:
        self.lent = [FakeWorker(self.answer) for _ in range(count)]
        yield self.lent

    def compiled(self) -> list[str]:
        """Names of the cases that the last workers were asked for."""
        return sorted(task.case.name for worker in self.lent for task in worker.tasks)


@pytest.fixture
def units(collection: Collection, case: Case) -> list[CaseKernels]:
    """As many cases as are worth it, and one that is the same work as the first."""
    cases = [msgspec.structs.replace(case, name=f"n{size}", params={"size": size}) for size in range(10, 10 + FEWEST_CASES)]
    return [case_kernels(collection, one, "cpu", "good*") for one in [*cases, msgspec.structs.replace(cases[0], name="same")]]


@pytest.fixture
def sources(root: Path, tmp_path: Path) -> Path:
    """A kernels folder of the test's own."""
    return shutil.copytree(root, tmp_path / "kernels")


@pytest.fixture
def ahead(sources: Path, tmp_path: Path) -> Callable[..., tuple[int, FakePool]]:
    """`ahead(units, answer)`: the number of compiled cases, and the pool; marks are kept from call to call."""

    def run(
        units: list[CaseKernels], answer: Callable[[CompileTask], Compiled | Failure] = lambda task: Compiled(), **options: Any
    ) -> tuple[int, FakePool]:
        compiling._sources.cache_clear()
        pool = FakePool(sources, answer)
        return compile_ahead(pool, units, **{"processes": 3, "marks": tmp_path / "marks", **options}), pool  # type: ignore[arg-type]

    return run


def test_every_work_is_compiled_once_and_not_again_while_its_sources_stay(ahead: Any, units: list[CaseKernels], sources: Path) -> None:
    count, pool = ahead(units)
    assert (count, len(pool.lent)) == (FEWEST_CASES, 3)
    assert len(pool.compiled()) == len(set(pool.compiled())) == FEWEST_CASES
    assert {task.kernels for worker in pool.lent for task in worker.tasks} == {("scale/good@1", "scale/split@1")}
    again, pool = ahead(units)
    assert (again, pool.lent) == (0, [])
    changed = sources / "scale" / "good.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    assert ahead(units)[0] == FEWEST_CASES


def test_a_few_cases_or_a_single_process_are_not_worth_it(ahead: Any, units: list[CaseKernels]) -> None:
    assert ahead(units[1:-1])[1].lent == []
    assert ahead(units, processes=1)[1].lent == []


def test_a_case_that_fails_is_left_to_its_check_and_compiled_again_the_next_time(ahead: Any, units: list[CaseKernels]) -> None:
    def answer(task: CompileTask) -> Compiled | Failure:
        return FAILED if task.case.name in ("n10", "n11") else Compiled()

    assert len(ahead(units, answer)[1].compiled()) == FEWEST_CASES
    marks = 2  # left to compile: too few to start processes for
    assert ahead(units)[0] == 0
    more = [msgspec.structs.replace(unit, case=msgspec.structs.replace(unit.case, name=f"new_{unit.case.name}")) for unit in units]
    grown = [msgspec.structs.replace(unit, facts=unit.op.facts({"size": 100 + at})) for at, unit in enumerate(more)]
    count, pool = ahead([*units, *grown[: FEWEST_CASES - marks]])
    assert count == FEWEST_CASES
    assert {"n10", "n11"} < set(pool.compiled())


def test_workers_that_cannot_work_on_the_device_are_asked_once(ahead: Any, units: list[CaseKernels]) -> None:
    _, pool = ahead(units, lambda task: msgspec.structs.replace(FAILED, unfit=True))
    assert [len(worker.tasks) for worker in pool.lent] == [1, 1, 1]


def test_an_interruption_ends_every_worker(ahead: Any, units: list[CaseKernels], monkeypatch: pytest.MonkeyPatch) -> None:
    lent: list[FakeWorker] = []
    seen = threading.Event()

    def interrupted(done: int, total: int) -> None:
        if not seen.is_set():
            seen.set()
            raise KeyboardInterrupt

    made = FakeWorker.__init__

    def note(worker: FakeWorker, answer: Any) -> None:
        made(worker, answer)
        lent.append(worker)

    monkeypatch.setattr(FakeWorker, "__init__", note)
    with pytest.raises(KeyboardInterrupt):
        ahead(units, on_step=interrupted)
    assert [worker.interrupted for worker in lent] == [True] * 3


def test_a_worker_calls_the_kernels_and_says_which_one_fails(root: Path, case: Case) -> None:
    with WorkerProcess(WorkerSetup(roots=(root,), device="cpu"), silence_s=30.0) as worker:
        assert worker.ask(CompileTask(case=case, kernels=("scale/good@1", "scale/split@1"))) == Compiled()
        failed = worker.ask(CompileTask(case=case, kernels=("scale/good@1", "scale/raises@1")))
    assert isinstance(failed, Failure)
    assert (failed.kernel, failed.unfit) == ("scale/raises@1", False)


def test_configurations_that_compilers_tune_beside_other_processes_do_not_reach_the_disk(tmp_path: Path) -> None:
    """In a process of its own, because it changes the compilers."""
    script = """
from types import SimpleNamespace
from fusebench.runner.workers.tuning import keep_tuning_in_memory
from torch._inductor.runtime.autotune_cache import AutotuneCache
from triton.runtime.autotuner import Autotuner

written = []
config = SimpleNamespace(kwargs={"XBLOCK": 8}, num_warps=4, num_stages=1)

def save():
    cache = AutotuneCache("hash")
    cache.local_cache = SimpleNamespace(put=lambda *args: written.append(args)), "key"
    cache.save(config, 1000)

save()
assert len(written) == 1, "or this test shows nothing"
keep_tuning_in_memory(inductor=True)
save()
assert len(written) == 1
timed = []
assert Autotuner.check_disk_cache(None, ("key",), [], lambda: timed.append(1)) is False
assert timed == [1]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
