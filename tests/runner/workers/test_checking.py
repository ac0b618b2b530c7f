"""Which worker checks a kernel, and what its reply amounts to."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusebench.device import Device
from fusebench.errors import DeviceUnfitError
from fusebench.registry import Collection, Kernel
from fusebench.runner.case_kernels import case_kernels
from fusebench.runner.workers import child as child_module
from fusebench.runner.workers.checking import INTERPRETER_ROWS, check, check_all
from fusebench.runner.workers.child import Child
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, WorkerSetup
from fusebench.schema import Accuracy, Case, Language, Status

RIGHT = Accuracy(
    passed=True, contract="close(1.5x split)", rms_error=0.0, max_error=0.0, mean_error=0.0, split_rms_error=0.0, split_max_error=0.0,
    equal_to_split=1.0, within_loose_tolerance=True, draws=1, elements=1, seed=1,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("forked_workers")


class Answering:
    """A worker that gives one answer."""

    def __init__(self, answer: Checked | Failure) -> None:
        self.answer = answer
        self.tasks: list[CheckTask] = []
        self.stopped = 0
        self.dismissed = False

    def called_before(self, kernel: str) -> tuple[str, ...]:
        return ()

    silence_s = 60.0

    def ask(self, task: CheckTask, on_progress: Any) -> Checked | Failure:
        self.tasks.append(task)
        return self.answer

    def dismiss(self) -> None:
        self.dismissed = True

    def stop(self) -> None:
        self.stopped += 1

    def interrupt(self) -> None:
        pytest.fail("nothing went wrong")


@pytest.fixture
def ask(collection: Collection, case: Case, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`ask(answer, device, language)`: the result for `scale/good@1`, and the tasks of both workers."""

    def run(answer: Checked | Failure, device: str = "cpu", language: Language = Language.TORCH, **options: Any) -> Any:
        kernel: Kernel = collection.kernels["scale/good@1"]
        monkeypatch.setattr(kernel, "language", language)
        workers = WorkerPool(Device(kind=device, name="toy"), collection.roots)  # type: ignore[arg-type]
        native, interpreter = Answering(answer), Answering(answer)
        workers.native, workers.interpreter = native, interpreter  # type: ignore[assignment]
        result = check(workers, case_kernels(collection, case, device), kernel, **options)
        return result, native.tasks, interpreter.tasks

    return run


def test_a_right_kernel_is_checked_as_it_will_be_timed(ask: Any) -> None:
    result, native, interpreter = ask(Checked(accuracy=RIGHT), seed=9)
    assert (result.status, result.reason, result.accuracy) == (Status.CHECKED, "", RIGHT)
    assert [(task.kernel, task.rows, task.seed) for task in native] == [("scale/good@1", None, 9)]
    assert interpreter == []


def test_without_a_gpu_a_triton_kernel_is_checked_in_the_interpreter_on_few_tokens(ask: Any) -> None:
    result, native, interpreter = ask(Checked(accuracy=RIGHT), language=Language.TRITON)
    assert [task.rows for task in interpreter] == [INTERPRETER_ROWS]
    assert native == []
    assert result.status is Status.CHECKED
    assert "needs a GPU to be timed" in result.reason, "what keeps it from being timed"
    assert "on all tokens, bias at input magnitude 1 only, extra draws called once" in result.reason, "what is left out is said"


def test_on_a_gpu_a_triton_kernel_is_checked_natively(ask: Any) -> None:
    result, native, interpreter = ask(Checked(accuracy=RIGHT), "cuda", Language.TRITON)
    assert ([task.rows for task in native], interpreter, result.reason) == ([None], [], "")


def test_a_wrong_kernel_keeps_its_figures_and_its_reason(ask: Any) -> None:
    wrong = Accuracy(**{name: getattr(RIGHT, name) for name in RIGHT.__struct_fields__} | {"passed": False, "reason": "off by one"})
    result, _, _ = ask(Checked(accuracy=wrong))
    assert (result.status, result.reason, result.accuracy) == (Status.WRONG, "off by one", wrong)


@pytest.mark.parametrize("status", [Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY, Status.COMPILE_ERROR])
def test_a_failure_is_the_kernels_result(ask: Any, status: Status) -> None:
    result, _, _ = ask(Failure(status=status, reason="planted", kernel="scale/good@1"))
    assert (result.status, result.reason, result.accuracy) == (status, "planted", None)


def test_a_worker_that_cannot_work_at_all_is_no_kernels_fault(ask: Any) -> None:
    with pytest.raises(DeviceUnfitError, match="case scale:even: no worker could be started"):
        ask(Failure(status=Status.CRASHED, reason="no worker could be started", unfit=True))


def test_leaving_ends_both_workers(cpu: Device) -> None:
    workers = WorkerPool(cpu, ())
    native, interpreter = Answering(Checked(accuracy=RIGHT)), Answering(Checked(accuracy=RIGHT))
    native.stop = lambda: waited.append(interpreter.dismissed)  # type: ignore[method-assign]
    waited: list[bool] = []
    workers.native, workers.interpreter = native, interpreter  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt), workers:
        raise KeyboardInterrupt
    assert (native.dismissed, interpreter.stopped) == (True, 1)
    assert waited == [True], "both are asked to leave before either is waited for"


class Meeting(Answering):
    """A worker that answers only once the other one has been asked too, or when it is interrupted."""

    def __init__(self, answer: Checked | Failure, asked: threading.Event, awaited: threading.Event) -> None:
        super().__init__(answer)
        self.asked, self.awaited = asked, awaited
        self.waited_in_vain = False
        self.interrupted = False

    def ask(self, task: CheckTask, on_progress: Any) -> Checked | Failure:
        self.asked.set()
        self.waited_in_vain |= not self.awaited.wait(20)
        return super().ask(task, on_progress)

    def interrupt(self) -> None:
        self.interrupted = True
        self.awaited.set()


@pytest.fixture
def both(collection: Collection, case: Case, cpu: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`both(native, interpreter)`: the results of `scale/good@1` (called Triton here), `wrong` and `split`, checked by these two."""

    def run(native: Any, interpreter: Any) -> Any:
        monkeypatch.setattr(collection.kernels["scale/good@1"], "language", Language.TRITON)
        workers = WorkerPool(cpu, collection.roots)
        workers.native, workers.interpreter = native, interpreter
        return check_all(workers, case_kernels(collection, case, "cpu", "[gw]*"))

    return run


def test_both_workers_work_at_the_same_time_and_results_keep_the_kernels_order(both: Any) -> None:
    first, second = threading.Event(), threading.Event()
    native, interpreter = Meeting(Checked(accuracy=RIGHT), first, second), Meeting(Checked(accuracy=RIGHT), second, first)
    assert [result.kernel for result in both(native, interpreter)] == ["scale/good@1", "scale/split@1", "scale/wrong@1"]
    assert [worker.waited_in_vain for worker in (native, interpreter)] == [False, False]
    assert ({task.kernel for task in native.tasks}, {task.kernel for task in interpreter.tasks}) == (
        {"scale/split@1", "scale/wrong@1"},
        {"scale/good@1"},
    )


def test_all_kernels_of_a_case_get_one_seed_which_the_next_check_does_not_get(both: Any) -> None:
    native, interpreter = Answering(Checked(accuracy=RIGHT)), Answering(Checked(accuracy=RIGHT))
    both(native, interpreter)
    both(native, interpreter)
    seeds = [task.seed for task in (*native.tasks, *interpreter.tasks)]
    assert None not in seeds
    assert len(seeds) == 6
    assert len(set(seeds)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceUnfitError("planted")], ids=lambda error: type(error).__name__)
def test_what_ends_one_workers_checks_does_not_wait_for_the_others(both: Any, error: BaseException) -> None:
    class Ending(Meeting):
        def ask(self, task: CheckTask, on_progress: Any) -> Checked | Failure:
            super().ask(task, on_progress)
            raise error

    never, asked = threading.Event(), threading.Event()
    native, interpreter = Ending(Checked(accuracy=RIGHT), threading.Event(), asked), Meeting(Checked(accuracy=RIGHT), asked, never)
    with pytest.raises(type(error)):
        both(native, interpreter)
    assert interpreter.interrupted
    assert not interpreter.waited_in_vain, "it was waited for"


def test_an_interrupted_worker_is_never_started_again(root: Path, case: Case) -> None:
    process = WorkerProcess(WorkerSetup(roots=(root,), device="cpu"), silence_s=1.0)
    process.interrupt()
    with pytest.raises(InterruptedError):
        process.ask(CheckTask(case=case, kernel="scale/good@1"))
    assert process.pid is None


def test_fresh_workers_are_all_ready_before_the_first_is_asked_and_end_with_their_context(root: Path, cpu: Device, case: Case) -> None:
    with WorkerPool(cpu, [root]) as pool:
        fresh = pool.fresh(2)
        pids = {worker.pid for worker in fresh}
        assert len(pids) == 2
        assert None not in pids
        assert [worker.until_ready() for worker in fresh] == [None, None]
        assert isinstance(fresh[1].ask(CheckTask(case=case, kernel="scale/good@1", seed=5)), Checked)
        assert {worker.pid for worker in fresh} == pids, "readiness is of the process that is asked"
    assert [worker.pid for worker in fresh] == [None, None]


def test_fresh_workers_alone_make_a_timer_ready(root: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerProcess, "start", lambda self: None)
    monkeypatch.setattr(WorkerProcess, "until_ready", lambda self: None)
    workers = WorkerPool(cpu, [root], timer="cupti")
    assert [worker._setup.timer for worker in workers.fresh(2)] == ["cupti", "cupti"]
    assert [workers.native._setup.timer, workers.interpreter._setup.timer] == ["", ""], "a run may only check"


def test_dismissed_workers_leave_while_nobody_waits_for_them(root: Path, cpu: Device) -> None:
    with WorkerPool(cpu, [root]) as pool:
        fresh = pool.fresh(2)
        for worker in fresh:
            worker.dismiss()
        for child in (worker._child for worker in fresh):
            assert child is not None
            child._process.join(30.0)
            assert child._process.exitcode == 0, "it was neither killed nor did it stay"


class Stubborn:
    """A process that leaves only when it is killed; waiting for it moves the clock."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self.clock, self.alive, self.pid = clock, True, None

    def join(self, timeout: float) -> None:
        self.clock.now += timeout if self.alive else 0.0

    def is_alive(self) -> bool:
        return self.alive

    def kill(self) -> None:
        self.alive = False


def test_fresh_workers_that_do_not_leave_get_their_time_together(cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while seven were loading took the time of each of them, one after another."""
    clock = SimpleNamespace(now=100.0)
    made: list[Stubborn] = []

    def start(worker: WorkerProcess) -> None:
        made.append(Stubborn(clock))
        worker._child = child = Child.__new__(Child)
        child._process, child._asked_to_leave, child._closing = made[-1], 0.0, threading.Lock()  # type: ignore[assignment]
        child.channel = SimpleNamespace(send=lambda task: None, close=lambda: None)  # type: ignore[assignment]
        child.output, child._lifeline = SimpleNamespace(end=lambda: None), SimpleNamespace(close=lambda: None)  # type: ignore[assignment]

    monkeypatch.setattr(child_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(WorkerProcess, "start", start)
    with WorkerPool(cpu, [tmp_path]) as pool:
        pool.begin(4)
        assert [process.is_alive() for process in made] == [True] * 4
    assert [process.is_alive() for process in made] == [False] * 4
    assert clock.now == 100.0 + child_module.STOP_S, "the time of one"


def test_fresh_workers_that_were_started_end_when_the_next_one_is_not(root: Path, cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[WorkerProcess] = []
    dismissed: list[WorkerProcess] = []
    seen: list[int] = []
    start, dismiss, stop = WorkerProcess.start, WorkerProcess.dismiss, WorkerProcess.stop

    def interrupted(worker: WorkerProcess) -> None:
        if len(started) == 2:
            dismissed.clear()  # of what starting does to a worker that may have lived before
            seen.clear()
            raise KeyboardInterrupt
        start(worker)
        started.append(worker)

    monkeypatch.setattr(WorkerProcess, "start", interrupted)
    monkeypatch.setattr(WorkerProcess, "dismiss", lambda worker: (dismissed.append(worker), dismiss(worker)))
    monkeypatch.setattr(WorkerProcess, "stop", lambda worker: (seen.append(len(dismissed)), stop(worker)))
    pool = WorkerPool(cpu, [root])
    with pytest.raises(KeyboardInterrupt):
        pool.fresh(3)
    pool.dismiss_fresh()
    assert seen[0] == 3, "asked to leave together, before the first is waited for"
    assert [worker.pid for worker in started] == [None, None]


def test_a_fresh_worker_that_cannot_start_says_so_when_asked(cpu: Device, case: Case, tmp_path: Path) -> None:
    with WorkerPool(cpu, [tmp_path / "none"]) as pool:
        reply = pool.fresh(1)[0].ask(CheckTask(case=case, kernel="scale/good@1", seed=5))
    assert isinstance(reply, Failure)
    assert reply.unfit


def test_a_worker_loads_the_kernels_of_the_ops_that_it_is_for(root: Path, cpu: Device, case: Case) -> None:
    with WorkerPool(cpu, [root], ops={"another"}) as workers:
        reply = workers.native.ask(CheckTask(case=case, kernel="scale/good@1", seed=5))
    assert isinstance(reply, Failure)
    assert "unknown kernel 'scale/good@1'" in reply.reason
