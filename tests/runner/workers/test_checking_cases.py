"""Many cases through the gate, several at a time: who works beside whom, what is told when, and how it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.device import Device
from fusebench.errors import DeviceUnfitError
from fusebench.registry import Collection
from fusebench.runner.case_kernels import CaseKernels, case_kernels, result_for
from fusebench.runner.workers import checking
from fusebench.runner.workers.checking import check_cases, default_jobs
from fusebench.runner.workers.protocol import Progress
from fusebench.schema import Case, Language, Status

PATIENCE_S = 20.0
"""Seconds that a check of these tests waits for what must happen beside it."""


class FakePool:
    """Processes that nobody started."""

    made: list[FakePool]

    def __init__(self, device: Device, roots: Any, silence_s: float, *, threads: int | None, ops: set[str], **_: Any) -> None:
        self.threads, self.ops = threads, ops
        self.interrupted = threading.Event()
        self.left = False
        self.made.append(self)

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True

    def interrupt(self) -> None:
        self.interrupted.set()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakePool]:
    """The workers of the test, none of them real."""
    monkeypatch.setattr(FakePool, "made", [], raising=False)
    monkeypatch.setattr(checking, "WorkerPool", FakePool)
    return FakePool.made


@pytest.fixture
def cases(collection: Collection, case: Case, monkeypatch: pytest.MonkeyPatch) -> list[CaseKernels]:
    """Four cases of `scale/good@1` (called Triton here), `wrong` and `split`, the third of none of them."""
    monkeypatch.setattr(collection.kernels["scale/good@1"], "language", Language.TRITON)
    entries = [case_kernels(collection, msgspec.structs.replace(case, name=name), "cpu", "[gw]*") for name in "abcd"]
    entries[2] = msgspec.structs.replace(entries[2], runnable=())
    return entries


@pytest.fixture
def checked_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[tuple[str, str]]]:
    """`checked_by(visit)`: each check calls `visit(workers, case, kernel)` and passes; what was begun comes back."""

    def plant(visit: Any = lambda workers, case, kernel: None) -> list[tuple[str, str]]:
        begun: list[tuple[str, str]] = []

        def check(workers: Any, entry: CaseKernels, kernel: Any, *, seed: Any, on_progress: Any, on_remark: Any) -> Any:
            begun.append((entry.case.name, kernel.id.name))
            on_progress(Progress(text="check", kernel=kernel.id.name))
            visit(workers, entry.case.name, kernel.id.name)
            return result_for(entry.case, entry.shape, kernel, Status.CHECKED)

        monkeypatch.setattr(checking, "check", check)
        return begun

    return plant


def run(cpu: Device, cases: list[CaseKernels], jobs: int, **options: Any) -> dict[str, list[str]]:
    """Kernels of the results of each case, in the order in which the cases were done."""
    done: dict[str, list[str]] = {}

    def on_case(place: int, results: Any) -> None:
        assert cases[place].case.name not in done
        assert {result.case for result in results} <= {cases[place].case.name}
        done[cases[place].case.name] = [result.kernel for result in results]

    check_cases(cpu, (), cases, jobs=jobs, on_case=on_case, **options)
    return done


ALL = ["scale/good@1", "scale/split@1", "scale/wrong@1"]


@pytest.mark.parametrize("jobs", [1, 2, 50])
def test_every_case_is_told_once_with_its_results_in_the_kernels_order(
    cpu: Device, made: Any, cases: Any, checked_by: Any, jobs: int
) -> None:
    begun = checked_by()
    shown: list[tuple[str, str]] = []
    done = run(cpu, cases, jobs, on_progress=lambda entry, progress: shown.append((entry.case.name, progress.kernel)))
    assert done == {"a": ALL, "b": ALL, "c": [], "d": ALL}
    assert sorted(begun) == sorted(shown)
    assert len(begun) == 9
    assert len(made) == min(jobs, 6), "no more than there are pieces of work: three cases, natively and interpreted"
    assert all(workers.left and not workers.interrupted.is_set() for workers in made)


def test_two_jobs_work_at_the_same_time_in_processes_of_their_own(cpu: Device, made: Any, cases: Any, checked_by: Any) -> None:
    meeting, here = threading.Barrier(2, timeout=PATIENCE_S), set()

    def visit(workers: Any, case: str, kernel: str) -> None:
        if case == "a" and kernel in ("good", "split"):  # the first of the interpreted and of the native piece
            here.add(id(workers))
            meeting.wait()

    checked_by(visit)
    run(cpu, cases, 2)
    assert len(here) == 2
    assert [workers.threads for workers in made] == [1, 1], "cores that one uses are not the other's"


def test_one_job_is_one_after_the_other_with_all_threads(cpu: Device, made: Any, cases: Any, checked_by: Any) -> None:
    begun = checked_by()
    run(cpu, cases, 1)
    assert [case for case, _ in begun] == ["a"] * 3 + ["b"] * 3 + ["d"] * 3
    assert [workers.threads for workers in made] == [None]
    assert made[0].ops == {"scale"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceUnfitError("planted")], ids=lambda error: type(error).__name__)
def test_what_ends_one_job_ends_all_and_nothing_more_is_begun_or_told(
    cpu: Device, made: Any, cases: Any, checked_by: Any, error: BaseException
) -> None:
    other_is_waiting = threading.Event()

    def visit(workers: Any, case: str, kernel: str) -> None:
        if (case, kernel) == ("a", "good"):
            assert other_is_waiting.wait(PATIENCE_S)
            raise error
        other_is_waiting.set()
        assert workers.interrupted.wait(PATIENCE_S), "it was not ended"

    begun = checked_by(visit)
    done: list[int] = []
    with pytest.raises(type(error)):
        check_cases(cpu, (), cases, jobs=2, on_case=lambda place, results: done.append(place))
    assert all(workers.interrupted.is_set() and workers.left for workers in made)
    assert {case for case, _ in begun} == {"a"}, "what waited its turn was not begun"
    assert done == [2], "the case without kernels; what was ended has no results"


def test_a_cpu_takes_as_many_jobs_as_this_process_may_use_cores(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert default_jobs(cpu, ()) == 3


def test_a_gpu_takes_as_many_jobs_as_half_the_cores_and_its_memory_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device(kind="cuda", name="toy", memory_bytes=80 * 2**30)
    small, large = (SimpleNamespace(facts=SimpleNamespace(minimum_bytes=size)) for size in (2**20, 2**30))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    assert default_jobs(gpu, [small]) == 6
    assert default_jobs(gpu, [small, large]) == 2, "48 GiB, and 16.25 for each"
    assert default_jobs(gpu, [SimpleNamespace(facts=SimpleNamespace(minimum_bytes=2**33))]) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(128)), raising=False)
    assert default_jobs(gpu, [small]) == checking.MOST_PROCESSES
