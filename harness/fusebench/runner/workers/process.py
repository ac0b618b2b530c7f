"""Worker processes seen from the runner: started on demand, watched, replaced when they die or hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from ...device.triton_programs import assembler_environment
from ...schema import Status
from .protocol import Failure, Progress, Reply, Task, WorkerSetup
from .worker import NAME_BYTES, READY, read_name, worker_main

POLL_S = 0.2
START_S = 300.0
"""Time that a worker gets to import torch and the kernels, which takes seconds, or minutes from a cold network disk.  Not a kernel's
doing, so apart from the silence that a kernel is allowed."""
STOP_S = 5.0
"""Time that a worker gets to leave by itself once it was asked; releasing a CUDA context takes well under a second."""


class WorkerProcess:
    """One worker, restarted when it is lost.  A context manager: leaving it ends the process."""

    def __init__(self, setup: WorkerSetup, *, silence_s: float) -> None:
        """`silence_s`: seconds without a sign of life after which a worker that has a task counts as hung."""
        self._setup = setup
        self._silence_s = silence_s
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._calling: Any = None
        """Name of the kernel that the worker is calling, in shared memory."""
        self._ready = False
        self._interrupted = False
        self._asked_to_leave = 0.0
        """When, as `time.monotonic` has it."""

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begin to start the process, unless it lives; `until_ready` waits for it.  Several workers may start at the same time."""
        self._ensure_started()

    def until_ready(self) -> Failure | None:
        """Start the process unless it lives, and wait until it has loaded everything; the failure that kept it from that, if any."""
        connection = self._ensure_started()
        began = time.monotonic()
        try:
            while not self._ready:
                if connection.poll(POLL_S):
                    message = connection.recv()
                    if isinstance(message, Failure):
                        self.stop()  # it leaves by itself: the next one asked is another process
                        return message
                    self._ready = message == READY
                elif time.monotonic() - began > START_S:
                    return self._hung("start")
        except (EOFError, ConnectionError):
            return Failure(status=Status.CRASHED, reason=f"the process died during 'start': {self._death()}", kernel=self._blamed)
        except BaseException:
            self.kill()  # half started, it would answer to nobody
            raise
        return None

    def ask(self, task: Task, on_progress: Callable[[Progress], None] = lambda progress: None) -> Reply:
        """Give the worker a task and wait for its reply; a worker that dies or falls silent is a Failure too.

        Raises:
            InterruptedError: `interrupt` was called before.
        """
        failure = self.until_ready()
        if failure is not None:
            return failure
        connection = self._ensure_started()
        doing = READY.text
        try:
            connection.send(task)
            heard = time.monotonic()
            while True:
                if connection.poll(POLL_S):
                    message = connection.recv()
                    heard = time.monotonic()
                    if not isinstance(message, Progress):
                        return self._after(message)
                    doing = message.text
                    on_progress(message)
                elif time.monotonic() - heard > self._silence_s:
                    return self._hung(doing)
        except (EOFError, ConnectionError):
            kernel = self._blamed
            return Failure(status=Status.CRASHED, reason=f"the process died during '{doing}': {self._death()}", kernel=kernel)
        except BaseException:
            self.kill()  # its reply to this task must not be taken for the reply to the next one
            raise

    @property
    def _blamed(self) -> str:
        return read_name(self._calling)

    def _hung(self, doing: str) -> Failure:
        kernel = self._blamed
        self.kill()
        if not self._ready:
            return Failure(status=Status.HUNG, reason=f"the worker process did not start within {START_S:g} s", unfit=True)
        reason = f"no sign of life for {self._silence_s:g} s during '{doing}'; raise --kernel-timeout if it is only slow"
        return Failure(status=Status.HUNG, reason=reason, kernel=kernel)

    def _after(self, reply: Reply) -> Reply:
        """A failed kernel may have left the CUDA context broken; the next task gets a new process."""
        if isinstance(reply, Failure) and self._setup.device != "cpu":
            self.stop()
        return reply

    def _ensure_started(self) -> Connection:
        if self._connection is None or self._process is None or not self._process.is_alive():
            self.stop()
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            self._calling = context.RawArray("c", NAME_BYTES)
            self._ready = False
            arguments = (theirs, self._setup, self._calling)
            process = context.Process(target=worker_main, args=arguments, name="fusebench-worker", daemon=True)
            changes = {"TRITON_INTERPRET": "1" if self._setup.interpret else None, **assembler_environment()}
            with _environment(changes), _interrupts_held_back():
                if self._interrupted:
                    raise InterruptedError("the worker process was told to end")
                process.start()
                self._process = process
            theirs.close()
            self._connection = ours
        return self._connection

    def _death(self) -> str:
        process = self._process
        code: int | None = None
        if process is not None:
            process.join(STOP_S)
            code = process.exitcode
        self.stop()
        if code is None:
            return "it closed its connection to the runner"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def interrupt(self) -> None:
        """End the worker for good, from another thread than the one that waits for its reply: that one gets a Failure at once."""
        with _starting:
            self._interrupted = True
            process = self._process
        if process is not None:
            process.kill()

    def dismiss(self) -> None:
        """Ask the worker to leave; `stop` waits for that.  Several workers may leave at the same time."""
        if self._connection is not None:
            with suppress(OSError):  # it may be gone already, which is what is wanted
                self._connection.send(None)
            self._connection.close()
            self._connection = None
            self._asked_to_leave = time.monotonic()

    def stop(self) -> None:
        """End the worker: ask, then kill."""
        self.dismiss()
        if self._process is not None:
            # Of several that were asked together, all have had their time when the first one has.
            self._process.join(max(0.0, self._asked_to_leave + STOP_S - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the worker at once."""
        if self._process is not None:
            if self._process.is_alive():
                self._process.kill()
            self._process.join(STOP_S)
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_starting = threading.Lock()
"""The environment belongs to the whole process: one worker is started at a time."""


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables changed (None: absent) while a child process is started."""
    with _starting:
        before = {name: os.environ.get(name) for name in changes}
        try:
            _apply(changes)
            yield
        finally:
            _apply(before)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C is held back from this thread, and from a child that is started meanwhile, until `worker_main` is there to ignore it.

    It reaches every process of the terminal: each that had not come so far printed a traceback of its own.
    """
    resource_tracker.ensure_running()  # multiprocessing starts it before the first child, and then lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _apply(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
