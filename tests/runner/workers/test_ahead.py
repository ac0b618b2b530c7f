"""Kernels of many cases are checked by several processes before the first is measured; what passes there counts, and nothing else does."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from fusebench.device import Device
from fusebench.registry import Collection
from fusebench.runner.case_kernels import CaseKernels, case_kernels, work_of
from fusebench.runner.workers import ahead as checking_ahead
from fusebench.runner.workers.ahead import FEWEST_CASES, Checks, check_ahead
from fusebench.runner.workers.checking import MEMORY_FACTOR, MEMORY_SHARE
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import AheadTask, CheckedAhead, Failure, Prepared, PrepareTask, WorkerSetup
from fusebench.runner.workers.worker import main as worker_module
from fusebench.schema import Accuracy, Case, Role, Status

pytestmark = pytest.mark.usefixtures("forked_workers")

GOOD, SPLIT = "scale/good@1", "scale/split@1"
FAILED = Failure(status=Status.COMPILE_ERROR, reason="planted")


Answer = Callable[[AheadTask], CheckedAhead | Failure]


def accuracy(*, passed: bool = True) -> Accuracy:
    return Accuracy(
        passed=passed,
        contract="close(1.5)",
        rms_error=0.0,
        max_error=0.0,
        mean_error=0.0,
        split_rms_error=0.0,
        split_max_error=0.0,
        equal_to_split=1.0,
        within_loose_tolerance=True,
        draws=1,
        elements=1,
        seed=7,
        reason="" if passed else "planted",
    )


def right(task: AheadTask) -> CheckedAhead:
    return CheckedAhead(accuracy={name: accuracy() for name in task.kernels}, seconds=dict.fromkeys(task.kernels, 0.5))


class FakeWorker:
    """A worker that answers at once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.tasks: list[AheadTask] = []
        self.prepared: list[PrepareTask] = []
        self.interrupted = False

    def ask(self, task: AheadTask | PrepareTask) -> CheckedAhead | Prepared | Failure:
        if isinstance(task, PrepareTask):
            self.prepared.append(task)
            return Prepared()
        self.tasks.append(task)
        return self.answer(task)

    def interrupt(self) -> None:
        self.interrupted = True


class FakePool:
    """Lends workers that answer at once."""

    def __init__(self, root: Path, answer: Answer, memory: int | None) -> None:
        self.device, self.roots, self.timer = Device(kind="cuda", name="toy", memory_bytes=memory), (root,), "cupti"
        self.answer = answer
        self.lent: list[FakeWorker] = []
        self.native = FakeWorker(answer)

    @contextmanager
    def helpers(self, count: int) -> Iterator[list[FakeWorker]]:
        self.lent = [FakeWorker(self.answer) for _ in range(count)]
        yield self.lent

    @property
    def tasks(self) -> list[AheadTask]:
        return [task for worker in self.lent for task in worker.tasks]

    def checked(self) -> list[str]:
        """Names of the cases that the last workers were asked for."""
        return sorted(task.case.name for task in self.tasks)


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
def ahead(sources: Path, tmp_path: Path) -> Callable[..., tuple[Checks, FakePool]]:
    """`ahead(units, answer)`: the checks, and the pool; marks are kept from call to call."""

    def run(units: list[CaseKernels], answer: Answer = right, memory: int | None = None, **options: Any) -> tuple[Checks, FakePool]:
        checking_ahead._sources.cache_clear()
        pool = FakePool(sources, answer, memory)
        return check_ahead(pool, units, **{"processes": 3, "marks": tmp_path / "marks", **options}), pool  # type: ignore[arg-type]

    return run


def test_every_work_is_checked_once_and_passes_for_every_case_of_that_work(ahead: Any, units: list[CaseKernels]) -> None:
    checks, pool = ahead(units)
    assert (checks.cases, len(pool.lent)) == (FEWEST_CASES, 3)
    assert len(pool.checked()) == len(set(pool.checked())) == FEWEST_CASES
    assert {task.kernels for task in pool.tasks} == {(GOOD, SPLIT)}
    assert len({task.seed for task in pool.tasks}) > 1
    assert all(checks.passed[work_of(unit)] == {GOOD: accuracy(), SPLIT: accuracy()} for unit in units)
    assert checks.seconds == {GOOD: 0.5 * FEWEST_CASES, SPLIT: 0.5 * FEWEST_CASES}
    assert [task.timer for task in pool.native.prepared] == ["cupti"], "meanwhile the first worker gets ready"


def test_few_cases_whose_code_is_in_the_caches_are_not_worth_it(
    ahead: Any, units: list[CaseKernels], sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead(units)
    again, pool = ahead(units)
    assert (again.cases, pool.lent, pool.native.prepared) == (0, [], [])
    monkeypatch.setattr(checking_ahead, "FEWEST_CHECKS", FEWEST_CASES)
    assert ahead(units)[0].cases == FEWEST_CASES
    monkeypatch.undo()
    changed = sources / "scale" / "good.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    assert ahead(units)[0].cases == FEWEST_CASES


def test_compiled_kernels_are_called_ahead_only_until_their_cache_holds_their_code(
    ahead: Any, units: list[CaseKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = {kernel for unit in units for kernel in unit.runnable if str(kernel.id) == GOOD}
    monkeypatch.setattr(good, "role", Role.COMPILED)
    monkeypatch.setattr(checking_ahead, "FEWEST_CHECKS", FEWEST_CASES)
    assert {task.kernels for task in ahead(units)[1].tasks} == {(GOOD, SPLIT)}
    assert {task.kernels for task in ahead(units)[1].tasks} == {(SPLIT,)}


def test_a_few_cases_or_a_single_process_are_not_worth_it(ahead: Any, units: list[CaseKernels]) -> None:
    assert ahead(units[1:-1])[1].lent == []
    assert ahead(units, processes=1)[1].lent == []


def test_no_case_is_begun_after_the_seconds_there_are(ahead: Any, units: list[CaseKernels], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(checking_ahead, "time", clock)

    def answer(task: AheadTask) -> CheckedAhead:
        clock.now += 10.0
        return right(task)

    checks, pool = ahead(units, answer, seconds=25.0)
    assert 3 <= len(pool.tasks) <= 5, "three processes, of which each may have begun one case when the time is over"
    assert len(checks.passed) == len(pool.tasks)


def test_one_process_makes_the_repeated_calls_of_a_kernel(ahead: Any, units: list[CaseKernels]) -> None:
    _, pool = ahead(units)
    for name in (GOOD, SPLIT):
        repeating = [worker for worker in pool.lent if any(name not in task.repeated_elsewhere for task in worker.tasks)]
        assert len(repeating) == 1
        assert all(name not in task.repeated_elsewhere for task in repeating[0].tasks), "over all cases that it checks"


def test_what_failed_or_was_wrong_does_not_count(ahead: Any, units: list[CaseKernels]) -> None:
    def answer(task: AheadTask) -> CheckedAhead | Failure:
        if task.case.name == "n10":
            return FAILED
        reply = right(task)
        if task.case.name == "n11":
            return msgspec.structs.replace(reply, accuracy={GOOD: accuracy(passed=False), SPLIT: accuracy()})
        return reply

    checks, _ = ahead(units, answer)
    passed = {unit.case.name: sorted(checks.passed.get(work_of(unit), {})) for unit in units}
    assert passed == {unit.case.name: [GOOD, SPLIT] for unit in units} | {"n10": [], "same": [], "n11": [SPLIT]}
    assert {work: list(wrong) for work, wrong in checks.wrong.items() if wrong} == {work_of(units[1]): [GOOD]}


def test_a_kernel_that_takes_a_process_down_is_called_no_more(ahead: Any, units: list[CaseKernels]) -> None:
    def answer(task: AheadTask) -> CheckedAhead | Failure:
        return msgspec.structs.replace(FAILED, kernel=GOOD, lost=True) if GOOD in task.kernels else right(task)

    checks, pool = ahead(units, answer, processes=2)
    assert 1 <= sum(GOOD in task.kernels for task in pool.tasks) <= 2
    assert sum(SPLIT in passed for passed in checks.passed.values()) >= FEWEST_CASES - 2


def test_cases_that_need_more_memory_than_there_is_wait_for_others_or_are_only_called(ahead: Any, units: list[CaseKernels]) -> None:
    at_once, most = [0], [0]
    guard = threading.Lock()

    def answer(task: AheadTask) -> CheckedAhead:
        with guard:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        threading.Event().wait(0.002)
        with guard:
            at_once[0] -= 1
        return right(task)

    large = [msgspec.structs.replace(unit, facts=msgspec.structs.replace(unit.facts, minimum_bytes=2**30)) for unit in units]
    checks, pool = ahead(large, answer, memory=int(1.5 * MEMORY_FACTOR * 2**30 / MEMORY_SHARE))
    assert (checks.cases, most) == (FEWEST_CASES, [1])
    assert all(task.checked for task in pool.tasks)
    _, pool = ahead([msgspec.structs.replace(unit, case=msgspec.structs.replace(unit.case, op="other")) for unit in large], memory=2**30)
    assert not any(task.checked or task.repeated_elsewhere for task in pool.tasks), "who only calls a kernel repeats nothing for others"


def of_bytes(unit: CaseKernels, minimum_bytes: int) -> CaseKernels:
    return msgspec.structs.replace(unit, facts=msgspec.structs.replace(unit.facts, minimum_bytes=minimum_bytes))


def test_large_cases_come_first_and_one_at_a_time_beside_the_others(units: list[CaseKernels]) -> None:
    small = units[:3]
    large = [of_bytes(unit, size * 2**30) for unit, size in zip(units[3:6], (2, 4, 3), strict=True)]
    queue = checking_ahead._Queue([*small, *large], 10 * MEMORY_FACTOR * 2**30, processes=8)
    with queue.next() as first, queue.next() as second:
        assert (first, second) == (large[1], small[0]), "the largest, and then none that would keep others of its kind waiting"
        with queue.next() as third:
            assert third is small[1]
    with queue.next() as fourth, queue.next() as fifth, queue.next() as sixth:
        assert (fourth, fifth) == (large[2], small[2])
        assert sixth is large[0], "no other is left"
        assert queue.waiting == 0
        with queue.next() as end:
            assert end is None


def test_a_large_case_for_which_there_is_no_memory_yet_lets_others_pass(units: list[CaseKernels]) -> None:
    medium, large = of_bytes(units[0], 2**29), [of_bytes(unit, 9 * 2**30) for unit in units[1:3]]
    queue = checking_ahead._Queue([medium, *large], 10 * MEMORY_FACTOR * 2**30, processes=8)
    with queue.next() as first, queue.next() as second:
        assert (first, second) == (large[0], medium)
        handed: list[CaseKernels | None] = []
        waiting = threading.Thread(target=lambda: handed.append(queue.next().__enter__()))
        waiting.start()
        waiting.join(0.05)
        assert handed == [], "two large ones do not fit"
    waiting.join(10.0)
    assert handed == [large[1]]


def test_one_case_of_each_op_comes_before_the_second_of_any() -> None:
    named = [SimpleNamespace(op=SimpleNamespace(name=name), number=number) for number, name in enumerate("aaabbc")]
    assert [one.number for one in checking_ahead._in_turn(named)] == [0, 3, 5, 1, 4, 2]  # type: ignore[arg-type]


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
    assert [worker.interrupted for worker in lent] == [True] * 4, "the native one, too"


def test_a_worker_checks_the_kernels_and_leaves_out_those_that_fail(root: Path, case: Case) -> None:
    kernels = (GOOD, "scale/raises@1", "scale/wrong@1", SPLIT)
    with WorkerProcess(WorkerSetup(roots=(root,), device="cpu"), silence_s=30.0) as worker:
        reply = worker.ask(AheadTask(case=case, kernels=kernels, seed=3))
        called = worker.ask(AheadTask(case=case, kernels=kernels, seed=3, checked=False))
        assert worker.ask(PrepareTask(case=case, timer="auto", compiler=False)) == Prepared()
    assert isinstance(reply, CheckedAhead)
    assert {name: one.passed for name, one in reply.accuracy.items()} == {GOOD: True, "scale/wrong@1": False, SPLIT: True}
    assert {one.seed for one in reply.accuracy.values()} == {3}
    assert set(reply.seconds) == set(kernels)
    assert isinstance(called, CheckedAhead)
    assert (called.accuracy, set(called.seconds)) == ({}, set(kernels))


def test_what_a_compiler_tunes_by_timing_is_called_and_not_checked(sources: Path, case: Case) -> None:
    """Such a choice is not kept, so another check would follow."""
    for name, tunings in (("compiled", 0), ("tuned", 1)):
        (sources / "scale" / f"{name}.py").write_text(f"""
from fusebench import kernel
from fusebench.runner.workers.worker import tuning


@kernel("scale", "{name}", version=1, role="compiled", language="torch")
def {name}(x, *, factor=2.0):
    tuning._tunings[0] += {tunings}
    return x * factor
""")
    compiled, tuned = "scale/compiled@1", "scale/tuned@1"
    with WorkerProcess(WorkerSetup(roots=(sources,), device="cpu"), silence_s=30.0) as worker:
        reply = worker.ask(AheadTask(case=case, kernels=(tuned, compiled, GOOD), seed=3))
    assert isinstance(reply, CheckedAhead)
    assert {name: one.passed for name, one in reply.accuracy.items()} == {compiled: True, GOOD: True}
    assert set(reply.seconds) == {tuned, compiled, GOOD}


def test_configurations_that_compilers_tune_beside_other_processes_do_not_reach_the_disk(tmp_path: Path) -> None:
    """In a process of its own, because it changes the compilers."""
    script = """
import pickle
from types import SimpleNamespace
from fusebench.runner.workers.worker.tuning import keep_tuning_in_memory
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton.runtime.autotuner import Autotuner

written = []
config = SimpleNamespace(kwargs={"XBLOCK": 8}, num_warps=4, num_stages=1)

def save():
    cache = AutotuneCache("hash")
    cache.local_cache = SimpleNamespace(put=lambda *args: written.append(args)), "key"
    cache.save(config, 1000)

save()
assert len(written) == 1, "or this test shows nothing"
assert keep_tuning_in_memory(inductor=True) == 0
save()
assert len(written) == 1
method = AutotuneCache("hash").save
assert pickle.loads(pickle.dumps(method)).__func__ is AutotuneCache.save, "compiled code is pickled with it"
timed = []
assert Autotuner.check_disk_cache(None, ("key",), [], lambda: timed.append(1)) is False
assert timed == [1]
assert keep_tuning_in_memory(inductor=True) == 1, "and what is tuned is counted, once"

class Tuner(CachingAutotuner):
    def __init__(self): pass
    def benchmark_all_configs(self): raise KeyError

for tunings in (2, 3):
    try:
        Tuner().autotune_to_one_config()
    except KeyError:
        assert keep_tuning_in_memory(inductor=True) == tunings
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_preparing_the_compiler_leaves_no_compiled_code_among_the_names_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's task that forgets compiled code would remove them, and the kernel would be blamed for the change."""
    compiled, started = functools.partial(torch.compile, backend="eager"), []
    monkeypatch.setattr(torch, "compile", compiled)
    stub = SimpleNamespace(device=torch.device("cpu"), _start_timer=started.append)
    compiled(worker_module._successor)(torch.zeros(4))
    assert any("__compiled_fn_" in name for name in vars(worker_module)), "or this test shows nothing"
    assert (
        worker_module.Worker._prepare(stub, PrepareTask(case=Case(suite="s", name="c", op="o", params={}), timer="host", compiler=True))
        == Prepared()
    )  # type: ignore[arg-type]
    assert not any("__compiled_fn_" in name for name in vars(worker_module))
    assert started == ["host"]
