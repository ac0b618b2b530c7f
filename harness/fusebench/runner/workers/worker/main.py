"""A worker process: loads the kernels, then checks and measures what it is told to, one task at a time.

Kernels run here and nowhere else, so one that crashes, hangs or corrupts the device takes a worker with it and not the run.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ....device.cpu_process import THREADS, hold_memory
from ....errors import TimerError
from ....schema import Status
from ....stats.paired import InvalidSamplesError
from ..channel import WorkerEnd
from ..protocol import AheadTask, CheckTask, Failure, Prepared, PrepareTask, Progress, Reply, Task, WorkerSetup
from .calls import CallWatch, TamperingError
from .cause import describe_cause, is_device_fault, status_of
from .checker import Checker
from .gpu_memory import GpuMemory
from .imports import ImportWatch, TamperingImportError
from .measurer import Measurer
from .revisions import Revisions
from .surroundings import settle_in
from .tuning import forget_compiled_code

if TYPE_CHECKING:
    import torch

READY = Progress(text="ready")
"""A worker's first words: it has loaded everything and waits for tasks."""
AROUND = "set-up and clean-up of measurements"
"""The phase in which a worker makes ready what it measures, and returns memory afterwards."""


class Streams(NamedTuple):
    """Ends of pipes that a worker's process gets: see `surroundings.settle_in`."""

    output: Connection
    lifeline: Connection


def worker_main(connection: WorkerEnd, setup: WorkerSetup, calling: Any, streams: Streams | None = None) -> None:
    """Entry point of the process: answers every task with one reply, until told None or the runner goes away.

    `calling` is an array of `calls.NAME_BYTES` characters shared with the runner.  It always holds the name of the kernel or arm that is
    being called, or of the file that is being imported: it is to blame when the process dies or falls silent.
    """
    settle_in(streams.output if streams is not None else None, streams.lifeline if streams is not None else None)
    try:
        try:
            worker = Worker(connection, setup, calling)
        except TamperingImportError as error:
            connection.send(Failure(status=Status.CRASHED, reason=error.reason, file=error.file, tampered=True))
            return
        except Exception as error:  # noqa: BLE001  no task was begun, so no kernel is to blame
            reason = f"no worker could be started on {setup.label or setup.device}: {describe_cause(error, setup.roots)}"
            connection.send(Failure(status=Status.CRASHED, reason=reason, unfit=True))
            return
        connection.send(READY)
        worker.serve()
    except (EOFError, ConnectionError):
        return


class Worker:
    """Answers tasks, and survives whatever their kernels raise."""

    def __init__(self, connection: WorkerEnd, setup: WorkerSetup, calling: Any) -> None:
        # One process compiles: Inductor would start one per core, which takes longer than what one case compiles.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        import torch

        self.connection = connection
        self.setup = setup
        self.device = torch.device(setup.device)
        if setup.interpret:
            from ....accuracy.interpreter import install_exact_casts, install_remembered_builtins

            install_exact_casts()
            install_remembered_builtins()
        if threads := THREADS if setup.cpu_process else setup.threads:
            torch.set_num_threads(threads)
        holds_memory = hold_memory() if setup.cpu_process else False
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        _import_trusted(self.device.type, timed=bool(setup.timer))
        self.calls = CallWatch(calling)
        watch = ImportWatch(self.calls.state, setup.excluded, self.calls.note_file)
        self.revisions = Revisions(setup, watch)
        watch.close()
        self.case_key = ""
        self.memory = GpuMemory(self.device)
        self.checker = Checker(self.device, self.revisions, self.memory, self._checked, self.calls.call)
        self.measurer = Measurer(
            setup, self.device, self.revisions, holds_memory=holds_memory, on_progress=self._tell, on_call=self.calls.call
        )
        if setup.timer:
            self._start_timer(setup.timer)

    def _start_timer(self, timer: str) -> None:
        """Start the profiler where it will be needed: here workers do so together, in their first measurements in turn."""
        if self.device.type != "cuda":
            return
        from ....timing.timers.cupti import CuptiTimer, start_profiler
        from ....timing.timers.select import select_timer

        with suppress(Exception):  # what is wrong with it, the measurement says, or the timer that is taken in its place
            if isinstance(select_timer("cuda", timer)[0], CuptiTimer):
                start_profiler(self.device)
        self.calls.start_anew()

    def serve(self) -> None:
        while (task := self.connection.recv()) is not None:
            self.connection.send(self._answer(task))

    def _answer(self, task: Task) -> Reply:
        """The reply to a task.  Whatever a kernel raises is that kernel's result, also what would end a process."""
        if self.case_key not in ("", task.case.key):  # before its first case a worker has compiled nothing
            forget_compiled_code()
        self.case_key = task.case.key
        self.calls.begin(task)
        allocated = self.memory.allocated()
        try:
            reply = self._reply(task)
        except (TimerError, InvalidSamplesError) as error:
            reply = Failure(status=Status.CRASHED, reason=str(error), unfit=True)
        except TamperingError as error:
            reply = Failure(status=Status.CRASHED, reason=error.reason, kernel=error.kernel, tampered=True)
        except BaseException as error:  # noqa: BLE001
            self.checker.forget_draws()  # it may have written anywhere before it failed
            reason = describe_cause(error, (*self.setup.roots, *self.setup.base_roots))
            reply = Failure(status=status_of(error), reason=reason, kernel=self.calls.named, unfit=is_device_fault(error))
        if isinstance(reply, Failure) and not reply.tampered:
            reply = msgspec.structs.replace(reply, broken=self.memory.is_broken(allocated))
        return self.calls.untampered(task, reply, self.revisions)

    def _reply(self, task: Task) -> Reply:
        began = time.monotonic()
        if isinstance(task, CheckTask):
            return self.checker.check(task)
        self.checker.forget_draws()
        if isinstance(task, AheadTask):
            return self.checker.check_ahead(task)
        if isinstance(task, PrepareTask):
            return self._prepare(task)
        measured = self.measurer.measure(task)
        self.memory.give_back()
        around = time.monotonic() - began - measured.seconds
        return msgspec.structs.replace(measured, phases_s={**measured.phases_s, AROUND: around})

    def _prepare(self, task: PrepareTask) -> Prepared:
        """Import torch.compile, by compiling something small, and start the timer: on an H200 they take 12 s and 3 s."""
        if task.compiler:
            import torch

            torch.compile(_successor, fullgraph=True, dynamic=False)(torch.zeros(64, device=self.device))
            # Its code would stay among this module's names until a kernel's task forgets it, and be called that kernel's change.
            forget_compiled_code()
        self._start_timer(task.timer)
        return Prepared()

    def _checked(self, done: int, total: int, kernel: str) -> None:
        self._tell(Progress(text="check", done=done, total=total, kernel=kernel))

    def _tell(self, progress: Progress) -> None:
        self.connection.send(progress)


def _successor(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _import_trusted(device: str, *, timed: bool) -> None:
    """Import everything but the kernels, so that the shared state is known before the first of them is imported."""

    from ....accuracy import gate  # noqa: F401

    if timed or device == "cuda":
        from ....timing import measure  # noqa: F401
        from ....timing.timers import select  # noqa: F401
    if device == "cuda" or "triton" in sys.modules:
        with suppress(ImportError):
            import triton.language
            import triton.testing  # noqa: F401
