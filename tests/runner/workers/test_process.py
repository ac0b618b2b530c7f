"""Worker processes as the runner sees them: every way in which a kernel can fail is that kernel's result, and nothing else's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusebench.device.triton_programs import ASSEMBLER_VARIABLE, CACHE_VARIABLE, assembler_environment
from fusebench.errors import NotCapturableError
from fusebench.runner.workers import process as process_module
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, Measured, Progress, TimeTask, WorkerSetup
from fusebench.runner.workers.worker import main as worker_module
from fusebench.runner.workers.worker.calls import NAME_BYTES
from fusebench.runner.workers.worker.cause import status_of
from fusebench.runner.workers.worker.checker import Checker
from fusebench.runner.workers.worker.main import READY
from fusebench.schema import CacheState, Case, SamplingPlan, Status
from fusebench.timing.timers import cupti, select

Check = Callable[..., Any]
PLAN = SamplingPlan(replicates=2, rounds=3, cache=CacheState.WARM, trim=0.0)
pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture
def check(worker: WorkerProcess, case: Case) -> Check:
    """`check(name)`: the worker's reply to a check of `scale/NAME@1`."""
    return lambda name, **options: worker.ask(CheckTask(case=case, kernel=f"scale/{name}@1", seed=5), **options)


def last_line(root: Path, name: str) -> int:
    return len((root / "scale" / f"{name}.py").read_text().rstrip().splitlines())


def test_a_kernel_that_is_right_is_checked_by_a_process_of_its_own(check: Check, worker: WorkerProcess) -> None:
    progress: list[Progress] = []
    reply = check("good", on_progress=progress.append)
    assert isinstance(reply, Checked)
    assert reply.accuracy.passed
    assert reply.accuracy.seed == 5
    assert progress[-1].kernel == "scale/good@1"
    assert progress[-1].done == progress[-1].total == reply.accuracy.draws
    assert worker.pid not in (None, os.getpid())


def test_a_kernel_that_is_wrong_is_reported_as_such(check: Check) -> None:
    reply = check("wrong")
    assert isinstance(reply, Checked)
    assert not reply.accuracy.passed
    assert reply.accuracy.reason


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("raises", Status.CRASHED, "ValueError: planted"),
        ("out_of_memory", Status.OUT_OF_MEMORY, "MemoryError: planted"),
        ("out_of_memory_below", Status.OUT_OF_MEMORY, "RuntimeError: wrapped"),
        ("does_not_compile", Status.COMPILE_ERROR, "CompilationError: at 3:7: planted"),
    ],
)
def test_what_a_kernel_raises_is_its_status_with_file_and_line(check: Check, root: Path, name: str, status: Status, said: str) -> None:
    reply = check(name)
    assert reply == Failure(status=status, reason=f"{said} ({name}.py, line {last_line(root, name)})", kernel=f"scale/{name}@1")


@pytest.mark.usefixtures("spawned_workers")
def test_a_worker_that_is_starting_does_not_hear_ctrl_c(root: Path) -> None:
    """Nor does it take a traceback to the terminal, one for each of the seven that begin beside the first case's checks."""
    with WorkerProcess(WorkerSetup(roots=(root,), device="cpu"), silence_s=30.0) as worker:
        worker.start()
        began = worker.pid
        assert began is not None
        for _ in range(20):
            os.kill(began, signal.SIGINT)
            time.sleep(0.02)
        assert worker.until_ready() is None
        assert worker.pid == began
        if (status := Path(f"/proc/{began}/status")).exists():
            (blocked,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigBlk")]
            assert not int(blocked, 16) & 1 << signal.SIGINT - 1, "what it starts hears it again"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "held back for as long as a process is started"


def test_an_exception_costs_no_process(check: Check, worker: WorkerProcess) -> None:
    check("good")
    before = worker.pid
    check("raises")
    assert isinstance(check("good"), Checked)
    assert worker.pid == before


@pytest.mark.parametrize(("name", "said"), [("exits", "exit status 7"), ("segfaults", "signal SIGSEGV")])
def test_a_kernel_that_takes_its_process_down_is_named_and_the_next_one_works(
    check: Check, worker: WorkerProcess, name: str, said: str
) -> None:
    check("raises")
    before = worker.pid
    reply = check(name)
    assert isinstance(reply, Failure)
    assert (reply.status, reply.kernel, reply.unfit) == (Status.CRASHED, f"scale/{name}@1", False)
    assert reply.reason.endswith(said)
    assert isinstance(check("good"), Checked)
    assert worker.pid != before


def test_an_interrupted_task_never_answers_for_the_next_one(check: Check, worker: WorkerProcess) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("good", on_progress=interrupt)
    assert worker.pid is None, "a worker in the middle of a task is of no more use"
    reply = check("wrong")
    assert isinstance(reply, Checked)
    assert not reply.accuracy.passed


def test_a_kernel_that_never_returns_is_hung_and_its_process_is_ended(
    check: Check, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    check("good")
    before = worker.pid
    assert before is not None
    monkeypatch.setattr(worker, "_silence_s", 1.0)
    reply = check("sleeps")
    assert isinstance(reply, Failure)
    assert (reply.status, reply.kernel) == (Status.HUNG, "scale/sleeps@1")
    assert "no sign of life for 1 s" in reply.reason
    assert "--kernel-timeout" in reply.reason
    assert not Path(f"/proc/{before}").exists()


def measure(worker: WorkerProcess, case: Case, *kernels: str) -> Any:
    names = tuple(f"scale/{name}@1" for name in ("split", *kernels))
    return worker.ask(TimeTask(case=case, kernels=names, baseline="scale/split@1", plan=PLAN, timer="auto", seed=1))


def test_timings_hold_a_sample_for_every_call_of_every_arm(worker: WorkerProcess, case: Case) -> None:
    reply = measure(worker, case, "good")
    assert isinstance(reply, Measured)
    assert {sample.arm for sample in reply.samples} == {"copy", "stream", "control", "scale/split@1", "scale/good@1"}
    assert len(reply.samples) == 2 * 3 * 5
    assert (reply.timer, reply.timer_fallback, reply.cut_short) == ("host", "", False)
    assert reply.minimum_bytes == dict.fromkeys({sample.arm for sample in reply.samples}, 8 * 4096)


@pytest.mark.parametrize(("name", "said"), [("raises_when_timed", "ValueError: planted for later"), ("dies_when_timed", "exit status 9")])
def test_a_kernel_that_fails_while_it_is_timed_is_named_though_others_were_called_after_its_warm_up(
    worker: WorkerProcess, case: Case, name: str, said: str
) -> None:
    reply = measure(worker, case, name, "good")
    assert isinstance(reply, Failure)
    assert (reply.status, reply.kernel) == (Status.CRASHED, f"scale/{name}@1")
    assert said in reply.reason


@pytest.mark.usefixtures("spawned_workers")
def test_the_interpreters_switch_is_set_in_its_worker_and_not_in_the_runner(
    root: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    task = CheckTask(case=case, kernel="scale/tells_interpreter@1")
    with WorkerProcess(WorkerSetup(roots=(root,), device="cpu", interpret=True), silence_s=60.0) as interpreter:
        reply = interpreter.ask(task)
    assert isinstance(reply, Failure)
    assert "KeyError: '1'" in reply.reason
    assert "TRITON_INTERPRET" not in os.environ


@pytest.mark.usefixtures("spawned_workers")
def test_a_users_switch_does_not_reach_the_worker_that_times_and_is_put_back(
    root: Path, case: Case, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    worker.kill()
    reply = worker.ask(CheckTask(case=case, kernel="scale/tells_interpreter@1"))
    assert isinstance(reply, Failure)
    assert "KeyError: 'absent'" in reply.reason
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_a_worker_that_cannot_start_blames_the_device_and_no_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(worker_module, "settle_in", lambda *_: None)
    connection: Any = SimpleNamespace(send=sent.append, recv=lambda: pytest.fail("it took a task"))
    worker_module.worker_main(connection, WorkerSetup(roots=(tmp_path / "absent",), device="cpu"), SimpleNamespace(value=b""))
    (reply,) = sent
    assert (reply.unfit, reply.kernel) == (True, "")
    assert "no worker could be started on cpu: UsageError" in reply.reason


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, root: Path) -> Callable[..., tuple[list[Any], list[str]]]:
    """`started(device, timer)`: what a worker of this process says until it has started, and the devices whose profiler it started."""

    def run(device: str, timer: str, kineto: bool = True, error: Exception | None = None) -> tuple[list[Any], list[str]]:
        profiled: list[str] = []

        def start_profiler(device: torch.device) -> None:
            assert sent == [], "it is part of the start"
            profiled.append(str(device))
            if error is not None:
                raise error

        sent: list[Any] = []
        monkeypatch.setattr(worker_module, "settle_in", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(select, "_kineto_sees_cuda", lambda: kineto)
        monkeypatch.setattr(cupti, "start_profiler", start_profiler)
        connection: Any = SimpleNamespace(send=sent.append, recv=lambda: None)
        worker_module.worker_main(
            connection, WorkerSetup(roots=(root,), ops=frozenset(), device=device, timer=timer), SimpleNamespace(value=b"")
        )
        return sent, profiled

    return run


@pytest.mark.parametrize("timer", ["auto", "cupti"])
def test_a_worker_that_will_measure_with_the_profiler_starts_it_before_it_is_ready(started: Callable[..., Any], timer: str) -> None:
    assert started("cuda:1", timer) == ([READY], ["cuda:1"])


@pytest.mark.parametrize(
    ("device", "timer", "kineto"),
    [("cuda:0", "", True), ("cuda:0", "auto", False), ("cuda:0", "cuda_graph", True), ("cpu", "auto", True)],
    ids=["checks_only", "torch_without_cupti", "another_timer", "cpu"],
)
def test_a_worker_that_needs_no_profiler_starts_none(started: Callable[..., Any], device: str, timer: str, kineto: bool) -> None:
    assert started(device, timer, kineto) == ([READY], [])


def test_a_profiler_that_does_not_start_is_left_to_the_measurement(started: Callable[..., Any]) -> None:
    assert started("cuda:0", "auto", error=RuntimeError("planted: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")) == ([READY], ["cuda:0"])


class Line:
    """A connection to a worker that is slow to say something: (seconds from now, message)."""

    def __init__(self, *script: tuple[float, object]) -> None:
        self.now = 0.0
        self.script = list(script)
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def poll(self, timeout: float) -> bool:
        due = self.script[0][0] if self.script else float("inf")
        if self.now + timeout < due:
            self.now += timeout
            return False
        self.now = max(self.now, due)
        return True

    def recv(self) -> object:
        return self.script.pop(0)[1]

    def close(self) -> None: ...


@pytest.fixture
def ask_over(monkeypatch: pytest.MonkeyPatch, case: Case) -> Callable[[Line], Any]:
    """`ask_over(line)`: what a worker with ten seconds of silence allowed comes to over this line."""

    def run(line: Line) -> Any:
        process = WorkerProcess(WorkerSetup(roots=(), device="cpu"), silence_s=10.0)
        child = SimpleNamespace(channel=line, ready=False, called=[], calling="scale/good@1", excess=lambda: "", kill=lambda: None)
        monkeypatch.setattr(process, "_ensure_started", lambda: child)
        monkeypatch.setattr(process_module.time, "monotonic", lambda: line.now)
        return process.ask(CheckTask(case=case, kernel="scale/good@1"))

    return run


DONE = Failure(status=Status.CRASHED, reason="an answer")


def test_the_time_that_a_worker_takes_to_start_is_not_a_kernels_silence(ask_over: Callable[[Line], Any]) -> None:
    assert ask_over(Line((60.0, READY), (69.0, DONE))) == DONE


def test_silence_counts_from_the_last_sign_of_life(ask_over: Callable[[Line], Any]) -> None:
    alive = [(9.0 * number, Progress(text="check")) for number in range(1, 6)]
    assert ask_over(Line((0.0, READY), *alive, (54.0, DONE))) == DONE
    reply = ask_over(Line((0.0, READY), *alive, (56.0, DONE)))
    assert (reply.status, reply.kernel) == (Status.HUNG, "scale/good@1")
    assert "no sign of life for 10 s during 'check'" in reply.reason


def test_a_worker_that_never_starts_is_the_devices_fault(ask_over: Callable[[Line], Any]) -> None:
    reply = ask_over(Line())
    assert (reply.unfit, reply.kernel) == (True, "")
    assert "did not start within 300 s" in reply.reason


def test_a_long_kernel_name_does_not_break_the_note_of_who_is_called(worker: WorkerProcess, case: Case) -> None:
    name = "n" * (NAME_BYTES + 10)
    reply = worker.ask(CheckTask(case=case, kernel=f"scale/{name}@1"))
    assert isinstance(reply, Failure)
    assert reply.kernel == f"scale/{name}"[: NAME_BYTES - 1]


def test_what_a_timer_cannot_capture_is_no_failure_of_the_kernel() -> None:
    error = NotCapturableError("arm 'scale/good@1' cannot be captured in a CUDA graph")
    assert status_of(error) is Status.NOT_RUNNABLE
    assert status_of(RuntimeError("planted")) is Status.CRASHED


def test_compiled_code_is_forgotten_between_cases_and_not_before_the_first(root: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process measures one case first, and forgetting would be what that costs most."""
    forgotten: list[str] = []
    monkeypatch.setattr(worker_module, "forget_compiled_code", lambda: forgotten.append(worker.case_key))
    monkeypatch.setattr(Checker, "check", lambda self, task: None)
    calling = SimpleNamespace(value=b"")
    worker = worker_module.Worker(SimpleNamespace(), WorkerSetup(roots=(root,), device="cpu"), calling)  # type: ignore[arg-type]
    other = Case(suite="scale", name="odd", op="scale", params={"size": 4097})
    for one in (case, case, other, case):
        worker._answer(CheckTask(case=one, kernel="scale/good@1", seed=5))
    assert forgotten == ["scale:even", "scale:odd"]


@pytest.mark.usefixtures("spawned_workers")
def test_workers_assemble_with_one_ptxas_whoever_compiles_in_them(root: Path, case: Case) -> None:
    """torch's Inductor leaves the variables alone where they are set, see `device.triton_programs`.

    A forked worker shows the environment of the process that it was forked from.
    """
    with WorkerProcess(WorkerSetup(roots=(root,), device="cpu"), silence_s=60.0) as worker:
        worker.ask(CheckTask(case=case, kernel="scale/good@1", seed=5))
        file = Path(f"/proc/{worker.pid}/environ")
        if not file.exists():
            pytest.skip("this system does not show a process' environment")
        environment = file.read_text().split("\0")
    expected = assembler_environment()
    assert set(expected) == {ASSEMBLER_VARIABLE, CACHE_VARIABLE}
    assert {f"{name}={value}" for name, value in expected.items()} <= set(environment)


class ForgetfulWorker:
    """A worker, and how often it had torch forget what was compiled."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        self.forgot = 0
        reset = torch.compiler.reset

        def counted() -> None:
            self.forgot += 1
            reset()

        reset()  # of what other tests compiled in this process
        monkeypatch.setattr(torch.compiler, "reset", counted)
        calling = SimpleNamespace(value=b"")
        self.worker = worker_module.Worker(SimpleNamespace(), WorkerSetup(roots=(root,), device="cpu"), calling)  # type: ignore[arg-type]

    def next_case(self) -> None:
        worker_module.forget_compiled_code()


@pytest.fixture
def forgetful(root: Path, monkeypatch: pytest.MonkeyPatch) -> ForgetfulWorker:
    return ForgetfulWorker(root, monkeypatch)


def test_a_worker_that_compiled_nothing_has_nothing_to_forget(forgetful: ForgetfulWorker) -> None:
    """On a GPU forgetting imports the compiler, which the profiler had imported a part of: that cost every fresh process 4 s."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]):
        forgetful.next_case()
    assert forgetful.forgot == 0


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_function_is_compiled_for_more_cases_than_torch_keeps(forgetful: ForgetfulWorker, fullgraph: bool) -> None:
    """A full graph is what kernels ask for, and what torch's counters of frames leave out; past the limit of eight it raises."""
    import torch

    twice = torch.compile(lambda x: x + x, backend="eager", dynamic=False, fullgraph=fullgraph)
    for size in range(1, 12):
        assert twice(torch.ones(size)).sum() == 2 * size
        forgetful.next_case()
        forgetful.next_case()
        assert forgetful.forgot == size, "once for each case that compiled"
