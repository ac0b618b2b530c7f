"""Accidents of kernels, planted one by one: each is its kernel's own result with its cause, and no other kernel suffers or is blamed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fusebench.device import Device
from fusebench.registry import Collection, load_collection
from fusebench.runner.case_kernels import CaseKernels, case_kernels
from fusebench.runner.workers import child as child_module
from fusebench.runner.workers import process as process_module
from fusebench.runner.workers.blame import search
from fusebench.runner.workers.checking import check, check_all
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, TimeTask, WorkerSetup
from fusebench.runner.workers.worker.surroundings import settle_in
from fusebench.schema import CacheState, Case, Result, SamplingPlan, Status

TOY = Path(__file__).parents[2] / "toy_project" / "kernels"
FILE = """
import ctypes, gc, os, signal, sys, time
import torch
from fusebench import kernel
{first}

@kernel("scale", "{name}", version=1, role="fused", language="torch")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""
CALLS = {
    "good": "pass",
    "leaves": "sys.exit(3)",
    "interrupts": 'raise KeyboardInterrupt("planted")',
    "exits": "os._exit(0)",
    "floods": 'os.write(1, b"x" * 2**20)',
    "eats": "x.new_empty(2**60)",
    "writes_garbage": "next(one for one in gc.get_objects() if type(one).__name__ == 'WorkerEnd')._connection.send_bytes(b'planted')",
    "replaces_empty": "torch.empty = None",
    "replaces_method": "torch.Tensor.contiguous = lambda self: self",
    "patches_clock": "time.perf_counter = lambda: 0.0",
    "moves": 'os.chdir("/")',
    "handles": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "sets_dtype": "torch.set_default_dtype(torch.float64)",
    "tunes_collector": "gc.set_threshold(7)",
    "sets_variable": "os.environ['TRITON_INTERPRET'] = '2'",
    "patches_gate": "sys.modules['fusebench.accuracy.gate'].check_kernel = None",
    "enters_mode": "torch.utils._python_dispatch.TorchDispatchMode().__enter__()",
    "restores": "before = torch.empty; torch.empty = None; torch.empty = before; gc.disable(); gc.enable()",
    "sleeps": "time.sleep(1000)",
    "compiles_lazily": "import torch._dynamo, torch._inductor",
    "hooks_exceptions": "sys.excepthook = lambda kind, value, trace: None",
}
"""Kernels `scale/NAME@1` by what they do when they are called, before they compute the right thing."""
IMPORTS = {
    "exits_at_import": "os._exit(0)",
    "crashes_at_import": "ctypes.string_at(0)",
    "interrupts_at_import": "raise KeyboardInterrupt",
    "prints_at_import": 'print("planted", "{}")',
    "replaces_at_import": "torch.zeros = torch.empty",
    "loops_at_import": "while True: pass",
}
CULPRITS = {
    "replaces_empty": "replaced torch.empty",
    "replaces_method": "replaced torch.Tensor.contiguous",
    "patches_clock": "replaced time.perf_counter",
    "moves": "changed the working directory from",
    "handles": "changed the handler of SIGTERM from",
    "sets_dtype": "changed torch's default dtype from torch.float32 to torch.float64",
    "tunes_collector": "changed the garbage collector's thresholds from",
    "sets_variable": "changed the environment variable TRITON_INTERPRET from",
    "patches_gate": "replaced fusebench.accuracy.gate.check_kernel",
    "enters_mode": "changed torch's active dispatch modes from 0 to 1",
}
PLAN = SamplingPlan(replicates=2, rounds=2, cache=CacheState.WARM, trim=0.0)
pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(scope="module")
def accidents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernels folder with the toy op and a kernel per accident."""
    folder = tmp_path_factory.mktemp("accidents")
    shutil.copytree(TOY, folder, ignore=shutil.ignore_patterns("__pycache__", "fast.py"), dirs_exist_ok=True)
    for name, body in CALLS.items():
        (folder / "scale" / f"{name}.py").write_text(FILE.format(name=name, first="", body=body))
    return folder


@pytest.fixture(scope="module")
def loaded(accidents: Path) -> Collection:
    return load_collection([accidents], entry_points=False)


@pytest.fixture(scope="module")
def shared(accidents: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(WorkerSetup(roots=(accidents,), device="cpu"), silence_s=60.0) as process:
        yield process


@pytest.fixture
def pool(cpu: Device, accidents: Path) -> Iterator[WorkerPool]:
    with WorkerPool(cpu, [accidents], silence_s=1.0) as workers:
        yield workers


def task(name: str, case: Case) -> CheckTask:
    return CheckTask(case=case, kernel=f"scale/{name}@1", seed=5)


def failed(reply: Any) -> Failure:
    assert isinstance(reply, Failure), reply
    return reply


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("leaves", "it asked its process to end with exit status 3"),
        ("interrupts", "KeyboardInterrupt: planted (interrupts.py, line 9)"),
        ("eats", "memory"),
    ],
)
def test_what_would_end_a_process_is_a_result_and_costs_no_process(shared: WorkerProcess, case: Case, name: str, said: str) -> None:
    assert isinstance(shared.ask(task("good", case)), Checked)
    before = shared.pid
    reply = failed(shared.ask(task(name, case)))
    assert said in reply.reason
    assert (reply.kernel, reply.unfit) == (f"scale/{name}@1", False)
    assert reply.status is (Status.OUT_OF_MEMORY if name == "eats" else Status.CRASHED)
    assert isinstance(shared.ask(task("good", case)), Checked)
    assert shared.pid == before


def test_a_success_that_a_kernel_exits_with_is_no_success(shared: WorkerProcess, case: Case) -> None:
    reply = failed(shared.ask(task("exits", case)))
    assert (reply.kernel, reply.lost) == ("scale/exits@1", True)
    assert reply.reason.endswith("exit status 0")


def test_a_flood_of_output_ends_the_process_and_little_of_it_is_shown(
    shared: WorkerProcess, case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child_module, "MOST_OUTPUT_BYTES", 2**20 - 1)
    monkeypatch.setattr(child_module, "SHOWN_BYTES", 2048)
    shared.kill()
    reply = failed(shared.ask(task("floods", case)))
    assert (reply.kernel, reply.lost) == ("scale/floods@1", True)
    assert "it printed more than" in reply.reason
    shared.kill()
    assert 2000 < len(capfd.readouterr().err) < 4000


def test_an_answer_that_a_kernel_forges_is_no_answer(shared: WorkerProcess, case: Case) -> None:
    reply = failed(shared.ask(task("writes_garbage", case)))
    assert "its process sent 7 bytes that are no answer" in reply.reason
    assert (reply.kernel, reply.lost) == ("scale/writes_garbage@1", True)


@pytest.mark.parametrize("name", sorted(CULPRITS))
def test_a_kernel_that_leaves_shared_state_changed_is_named_with_the_change(shared: WorkerProcess, case: Case, name: str) -> None:
    reply = failed(shared.ask(task(name, case)))
    assert (reply.status, reply.kernel, reply.tampered, reply.unfit) == (Status.CRASHED, f"scale/{name}@1", True, False)
    assert CULPRITS[name] in reply.reason
    assert isinstance(shared.ask(task("good", case)), Checked), "the next kernel gets another process"


@pytest.mark.parametrize("name", ["restores", "compiles_lazily", "hooks_exceptions"])
def test_what_is_put_back_or_belongs_to_a_library_or_concerns_no_other_kernel_is_no_change(
    shared: WorkerProcess, case: Case, name: str
) -> None:
    assert isinstance(shared.ask(task(name, case)), Checked)
    assert isinstance(shared.ask(task("good", case)), Checked)


@pytest.mark.parametrize("name", ["patches_clock", "replaces_empty"])
def test_of_several_kernels_that_are_timed_together_the_one_that_tampers_is_named(shared: WorkerProcess, case: Case, name: str) -> None:
    kernels = ("scale/split@1", "scale/good@1", f"scale/{name}@1")
    reply = failed(shared.ask(TimeTask(case=case, kernels=kernels, baseline="scale/split@1", plan=PLAN, timer="auto", seed=1)))
    assert (reply.kernel, reply.tampered, reply.unfit) == (f"scale/{name}@1", True, False)
    assert CULPRITS[name] in reply.reason


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A kernels folder of the toy op for files that a test plants."""
    shutil.copytree(TOY, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__", "fast.py"))
    return tmp_path / "kernels"


def plant(folder: Path, name: str, *, first: str = "", body: str = "pass") -> None:
    (folder / "scale" / f"{name}.py").write_text(FILE.format(name=name, first=first, body=body))


def test_files_that_take_the_process_down_when_they_are_imported_are_their_kernels_failures_alone(
    folder: Path, cpu: Device, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "IMPORT_S", 0.5)
    for name in ("good", *IMPORTS):
        plant(folder, name)
    unit = unit_of(load_collection([folder], entry_points=False), case, "good", *IMPORTS)
    for name, first in IMPORTS.items():  # only now: this process has loaded them
        plant(folder, name, first=first)
    with WorkerPool(cpu, [folder], silence_s=0.5) as workers:
        found = {kernel.id.name: check(workers, unit, kernel) for kernel in unit.runnable}
    assert found["good"].status is Status.CHECKED
    assert found["prints_at_import"].status is Status.CHECKED
    said = {
        "exits_at_import": "when exits_at_import.py was imported, the process died during 'import': exit status 0",
        "crashes_at_import": "the process died during 'import': signal SIGSEGV",
        "replaces_at_import": "when replaces_at_import.py was imported, it replaced torch.zeros",
        "loops_at_import": "when loops_at_import.py was imported, it had not ended after 0.5 s",
        "interrupts_at_import": "KeyboardInterrupt",
    }
    for name, text in said.items():
        assert text in found[name].reason
        assert found[name].status is (Status.HUNG if name == "loops_at_import" else Status.CRASHED)


def unit_of(loaded: Collection, case: Case, *names: str) -> CaseKernels:
    """The case with these kernels, in this order."""
    kernels = tuple(loaded.kernels[f"scale/{name}@1"] for name in names)
    return msgspec.structs.replace(case_kernels(loaded, case, "cpu"), runnable=kernels)


def by_name(results: list[Result]) -> dict[str, Result]:
    return {result.kernel.removeprefix("scale/").removesuffix("@1"): result for result in results}


def other(case: Case, name: str) -> Case:
    return Case(suite=case.suite, name=name, op=case.op, params={"size": 4100}, weight=1.0)


def test_a_kernel_that_takes_two_processes_down_is_called_no_more(pool: WorkerPool, loaded: Collection, case: Case) -> None:
    cases = [case, other(case, "second"), other(case, "third")]
    found = [by_name(check_all(pool, unit_of(loaded, one, "exits", "good"))) for one in cases]
    assert [one["good"].status for one in found] == [Status.CHECKED] * 3
    assert [one["exits"].status for one in found] == [Status.CRASHED] * 3
    assert all(one["exits"].reason.endswith("exit status 0") for one in found)
    before = "not called again, because it took down 2 worker processes; in case scale:second: "
    assert found[2]["exits"].reason == before + found[1]["exits"].reason


def test_a_cause_that_no_case_changes_is_taken_over_after_two_cases(pool: WorkerPool, loaded: Collection, case: Case) -> None:
    cases = [case, other(case, "second"), other(case, "third")]
    found = [by_name(check_all(pool, unit_of(loaded, one, "leaves")))["leaves"] for one in cases]
    assert found[2].reason == f"as in case scale:second: {found[1].reason}"
    assert pool.native.called_before("") == ("scale/leaves@1",)


ATTEMPTS = {
    "sys.exit(3)": 3,
    "import library_that_is_absent": 3,
    "ctypes.string_at(0)": 3,
    "os._exit(0)": 3,
    'while True: os.write(1, b"x" * 2**20)': 3,
    "time.sleep(1000)": 3,
    "x.new_empty(2**60)": 7,
}
"""By the body of a kernel the most often that it may be called in six cases: in each of two, and once alone.  A kernel that raises out of
memory costs no process, and a smaller case may fit: it is called in every case."""


QUICK = ("import library_that_is_absent", "os._exit(0)")


@pytest.mark.parametrize("body", [one if one in QUICK else pytest.param(one, marks=pytest.mark.exhaustive) for one in ATTEMPTS])
def test_a_failing_kernel_is_not_tried_in_every_case(
    folder: Path, cpu: Device, case: Case, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr("fusebench.runner.workers.failures.SHORTEST_S", 0.2)
    monkeypatch.setattr(child_module, "MOST_OUTPUT_BYTES", 2**20 - 1)
    monkeypatch.setattr(child_module, "SHOWN_BYTES", 2048)
    calls = folder.parent / "calls"
    for name in ("before", "after"):
        plant(folder, name)
    plant(folder, "fails", body=f"open({str(calls)!r}, 'a').write('x')\n    {body}")
    collection = load_collection([folder], entry_points=False)
    with WorkerPool(cpu, [folder], silence_s=2.0) as workers:
        cases = [case, *(other(case, f"later{one}") for one in range(5))]
        found = [by_name(check_all(workers, unit_of(collection, one, "before", "fails", "after"))) for one in cases]
    assert {one[name].status for one in found for name in ("before", "after")} == {Status.CHECKED}
    assert Status.CHECKED not in {one["fails"].status for one in found}
    assert 1 < calls.stat().st_size <= ATTEMPTS[body]


def test_a_kernel_that_takes_its_process_down_in_one_case_alone_is_measured_in_the_next(folder: Path, cpu: Device, case: Case) -> None:
    for name in ("before", "after"):
        plant(folder, name)
    plant(folder, "fails", body="x.numel() == 4100 or os._exit(0)")
    collection = load_collection([folder], entry_points=False)
    with WorkerPool(cpu, [folder], silence_s=30.0) as workers:
        cases = [case, other(case, "later")]
        found = [by_name(check_all(workers, unit_of(collection, one, "before", "fails", "after"))) for one in cases]
    assert [one["fails"].status for one in found] == [Status.CRASHED, Status.CHECKED]


def test_a_tampering_kernel_is_called_once(pool: WorkerPool, loaded: Collection, case: Case) -> None:
    first, second = (by_name(check_all(pool, unit_of(loaded, one, "moves", "good"))) for one in (case, other(case, "second")))
    assert [one["good"].status for one in (first, second)] == [Status.CHECKED] * 2
    assert second["moves"].reason == f"not called again, because in case {case.key} {first['moves'].reason}"
    assert pool.native.called_before("") == ("scale/good@1",)


def test_a_failure_that_an_earlier_kernel_causes_is_blamed_on_that_one(folder: Path, cpu: Device, case: Case) -> None:
    """By a way that the fingerprint of the shared state does not see."""
    plant(folder, "spoils", body="import json; json.dumps = None")
    plant(folder, "suffers", body="import json; json.dumps(1)")
    for name in ("before", "between"):
        plant(folder, name)
    collection = load_collection([folder], entry_points=False)
    remarks: list[str] = []
    with WorkerPool(cpu, [folder], silence_s=30.0) as workers:
        results = check_all(workers, unit_of(collection, case, "before", "spoils", "between", "suffers"), on_remark=remarks.append)
        found = by_name(results)
        assert [found[name].status for name in ("before", "between", "suffers")] == [Status.CHECKED] * 3
        assert found["spoils"].status is Status.CRASHED
        assert "it spoils its process for others: scale/suffers@1 fails after it, and not without it: TypeError" in found["spoils"].reason
        assert len(remarks) == 1
        assert "not in a process of its own" in remarks[0]
        again = by_name(check_all(workers, unit_of(collection, other(case, "second"), "spoils", "suffers")))
    assert again["suffers"].status is Status.CHECKED
    assert again["spoils"].reason.startswith(f"not called again, because in case {case.key} it spoils")


@pytest.mark.parametrize("guilty", range(5))
def test_the_one_that_spoils_is_found_by_halves(guilty: int) -> None:
    asked: list[int] = []

    def spoiled(suspects: Any) -> bool:
        asked.append(len(suspects))
        return str(guilty) in suspects

    assert search(list("01234"), spoiled) == str(guilty)
    assert len(asked) <= 5
    assert search(list("01234"), lambda suspects: False) == ""


def test_nobody_is_to_blame_for_what_only_many_do_together() -> None:
    """As buffers that fill the memory: by halves alone the last kernel would have been named."""
    assert search(list("01234"), lambda suspects: len(suspects) > 3) == ""
    assert search(list("01234"), lambda suspects: len(suspects) > 1) == ""


def test_a_hung_kernel_gets_less_time_in_the_next_case(folder: Path, cpu: Device, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebench.runner.workers.failures.SHORTEST_S", 0.2)
    plant(folder, "hangs", body="time.sleep(1000)")
    collection = load_collection([folder], entry_points=False)
    with WorkerPool(cpu, [folder], silence_s=1.0) as workers:
        units = [unit_of(collection, one, "hangs") for one in (case, other(case, "second"), other(case, "third"))]
        found = [check_all(workers, unit)[0] for unit in units]
    assert [one.status for one in found] == [Status.HUNG] * 3
    assert "no sign of life for 1 s" in found[0].reason
    assert "no sign of life for 0.2 s" in found[1].reason
    assert "not called again" in found[2].reason


def test_a_worker_ends_with_its_runner_whatever_its_kernel_is_doing() -> None:
    """Otherwise its kernel goes on to use a GPU whose lock is free."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    heard, ready = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        writing.close()
        settle_in(None, reading)
        ready.send_bytes(b"ready")
        while True:
            pass
    try:
        assert heard.recv_bytes() == b"ready"
        assert psutil.Process(pid).is_running()
        writing.close()
        ends = time.monotonic() + 10
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < ends:
            time.sleep(0.005)
        assert os.WTERMSIG(ended[1]) == signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
