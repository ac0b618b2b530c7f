"""Worker processes seen from the runner: started on demand, watched, replaced when they die, hang or are of no more use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from ...schema import Status
from .channel import GarbledReplyError
from .child import Child, start_child
from .failures import FailureLog
from .protocol import Failure, MeasureTask, Progress, Reply, Task, WorkerSetup, kernels_of
from .worker.calls import FILE
from .worker.main import READY

POLL_S = 0.2
START_S = 300.0
"""Time that a worker gets to import torch, which takes seconds, or minutes from a cold network disk.  Not a kernel's doing, so apart from
the silence that a kernel is allowed."""
IMPORT_S = 60.0
"""Time that a kernel file gets to be imported, or the silence that a kernel is allowed where that is longer: a peer's library may lie on a
cold disk."""


class WorkerProcess:
    """One worker, restarted when it is lost.  A context manager: leaving it ends the process.

    After its first loss it keeps a spare: a further process that starts in the background and waits.
    """

    def __init__(self, setup: WorkerSetup, *, silence_s: float, failures: FailureLog | None = None) -> None:
        """
        Args:
            silence_s: seconds without a sign of life after which a worker that has a task counts as hung.
            failures: receives the kernel files that cannot be imported, which are then left out; shared by the workers of a run.
        """
        self._setup = setup
        self._silence_s = silence_s
        self.failures = failures if failures is not None else FailureLog()
        self._child: Child | None = None
        self._spare: Child | None = None
        self._keeps_spare = False
        self._interrupted = False
        self._guard = threading.Lock()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def silence_s(self) -> float:
        """The usual limit of silence, in seconds."""
        return self._silence_s

    def called_before(self, kernel: str) -> tuple[str, ...]:
        """Other kernels than `kernel` that the process in use has called, in order."""
        return tuple(name for name in (self._child.called if self._child is not None else ()) if name != kernel)

    def start(self) -> None:
        """Begin to start the process, unless it lives; `until_ready` waits for it.  Several workers may start at the same time."""
        self._ensure_started()

    def renew(self) -> None:
        """Have the next task done by a process that has called no kernel."""
        self._keeps_spare = True
        if self._child is not None:
            self._child.stop()
            self._child = None

    def until_ready(self) -> Failure | None:
        """Start the process unless it lives, and wait until it has loaded everything; the failure that kept it from that, if any.

        A kernel file that takes the process down, hangs or changes shared state when it is imported is left out, and noted.
        """
        while True:
            child = self._ensure_started()
            try:
                failure = self._loaded(child)
            except BaseException:
                self.kill()  # half started, it would answer to nobody
                raise
            if failure is None or not failure.file:
                return failure
            if not self.failures.exclude(failure.file, failure):
                return msgspec.structs.replace(failure, unfit=True)  # it was not imported, so what it says is wrong

    def ask(self, task: Task, on_progress: Callable[[Progress], None] = lambda progress: None) -> Reply:
        """Give the worker a task and wait for its reply; a worker that dies or falls silent is a Failure too.

        Raises:
            InterruptedError: `interrupt` was called before.
        """
        failure = self.until_ready()
        if failure is not None:
            return failure
        if isinstance(task, MeasureTask):
            self._settle_spare()
        child = self._ensure_started()
        for kernel in kernels_of(task):
            if kernel not in child.called:
                child.called.append(kernel)
        silence_s = self._silence_s if task.silence_s is None else task.silence_s
        doing = READY.text
        try:
            child.channel.send(task)
            heard = time.monotonic()
            while True:
                if child.channel.poll(POLL_S):
                    message = child.channel.recv()
                    heard = time.monotonic()
                    if not isinstance(message, Progress):
                        return self._after(message)
                    doing = message.text
                    on_progress(message)
                elif time.monotonic() - heard > silence_s:
                    reason = f"no sign of life for {silence_s:g} s during '{doing}'; raise --kernel-timeout if it is only slow"
                    return self._ended(child, Status.HUNG, reason)
                if excess := child.excess():
                    status = Status.OUT_OF_MEMORY if "memory" in excess else Status.CRASHED
                    return self._ended(child, status, f"the process was ended during '{doing}': {excess}")
        except GarbledReplyError as error:
            return self._ended(child, Status.CRASHED, f"its process sent {error}, and was ended during '{doing}'")
        except (EOFError, ConnectionError):
            return self._died(child, doing)
        except BaseException:
            self.kill()  # its reply to this task must not be taken for the reply to the next one
            raise

    def _loaded(self, child: Child) -> Failure | None:
        """Wait until the child has loaded everything."""
        try:
            return self._heard_ready(child)
        except GarbledReplyError as error:
            failure = self._ended(child, Status.CRASHED, f"its process sent {error}, and was ended during 'start'")
        except (EOFError, ConnectionError):
            failure = self._died(child, "start")
        return failure if failure.file else msgspec.structs.replace(failure, kernel="", unfit=True)

    def _heard_ready(self, child: Child) -> Failure | None:
        limit = max(self._silence_s, IMPORT_S)
        began = since = time.monotonic()
        loading = ""
        while not child.ready:
            if child.channel.poll(POLL_S):
                message = child.channel.recv()
                if isinstance(message, Failure):
                    child.stop()  # it leaves by itself: the next one asked is another process
                    self._child = None if child is self._child else self._child
                    return message
                child.ready = message == READY
                continue
            now, before = time.monotonic(), loading
            loading = child.calling.removeprefix(FILE) if child.calling.startswith(FILE) else ""
            since = since if loading == before else now
            excess = child.excess() if loading else ""
            if excess or (loading and now - since > limit):
                return self._ended(child, Status.HUNG, excess or f"it had not ended after {limit:g} s")
            if not loading and now - began > START_S:
                failure = self._ended(child, Status.HUNG, f"the worker process did not start within {START_S:g} s")
                return msgspec.structs.replace(failure, kernel="", unfit=True)
        return None

    def _died(self, child: Child, doing: str) -> Failure:
        """The failure of a process that is gone."""
        name = child.calling
        how, no_memory = child.how_it_ended()
        self._lose(child)
        status = Status.OUT_OF_MEMORY if no_memory else Status.CRASHED
        return _blaming(name, status, f"the process died during '{'import' if name.startswith(FILE) else doing}': {how}")

    def _ended(self, child: Child, status: Status, reason: str) -> Failure:
        """The failure of a process that has to be ended."""
        name = child.calling
        child.kill()
        self._lose(child)
        return _blaming(name, status, reason)

    def _lose(self, child: Child) -> None:
        self._keeps_spare = True
        if child is self._child:
            self._child = None

    def _after(self, reply: Reply) -> Reply:
        """A process that can do no further work, or whose shared state was changed, is replaced."""
        if isinstance(reply, Failure) and (reply.broken or reply.tampered):
            self.renew()
        return reply

    def _ensure_started(self) -> Child:
        if self._child is not None and (self._child.leaves or not self._child.is_alive):
            self._child.stop()
            self._child = None
        if self._child is None:
            self._child, self._spare = self._valid_spare() or self._new_child(), None
        if self._keeps_spare and self._child.ready and self._valid_spare() is None:
            self._spare = self._new_child()
        return self._child

    def _valid_spare(self) -> Child | None:
        """The spare, unless it is gone or loads files that are left out by now."""
        spare = self._spare
        if spare is not None and (not spare.is_alive or spare.setup.excluded != self._excluded):
            spare.kill()
            self._spare = None
        return self._spare

    @property
    def _excluded(self) -> dict[str, str]:
        """Files that a process that starts now leaves out."""
        return {**self._setup.excluded, **self.failures.excluded()}

    def _new_child(self) -> Child:
        setup = msgspec.structs.replace(self._setup, excluded=self._excluded)
        with self._guard:
            if self._interrupted:
                raise InterruptedError("the worker process was told to end")
            return start_child(setup)

    def _settle_spare(self) -> None:
        """Wait until the spare has started, so that it does not disturb a measurement."""
        spare = self._spare
        if spare is not None and self._loaded_spare(spare) is not None:
            self._spare = None

    def _loaded_spare(self, spare: Child) -> Failure | None:
        if spare.ready:
            return None
        child = self._child
        failure = self._loaded(spare)
        self._child = child
        return failure

    def interrupt(self) -> None:
        """End the worker for good, from another thread than the one that waits for its reply: that one gets a Failure at once."""
        with self._guard:
            self._interrupted = True
            for child in (self._child, self._spare):
                if child is not None:
                    child.interrupt()

    def dismiss(self) -> None:
        """Ask the worker to leave; `stop` waits for that.  Several workers may leave at the same time."""
        for child in (self._child, self._spare):
            if child is not None:
                child.dismiss()

    def stop(self) -> None:
        """End the worker: ask, then kill."""
        self.dismiss()
        for child in (self._child, self._spare):
            if child is not None:
                child.stop()
        self._child = self._spare = None

    def kill(self) -> None:
        """End the worker at once."""
        for child in (self._child, self._spare):
            if child is not None:
                child.kill()
        self._child = self._spare = None


def _blaming(name: str, status: Status, reason: str) -> Failure:
    """A lost process's failure: of the file that was being imported, or of the kernel that was being called, if any."""
    if name.startswith(FILE):
        return Failure(status=status, reason=reason, file=name.removeprefix(FILE), lost=True)
    return Failure(status=status, reason=reason, kernel=name, lost=True)
