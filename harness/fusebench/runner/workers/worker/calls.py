"""Which kernel is being called, for whoever outlives the process; and which kernel left shared state changed."""

from __future__ import annotations

from typing import Any

from ....schema import Status
from ..protocol import CheckTask, Failure, MeasureTask, Reply, Task, kernels_of
from .revisions import Revisions
from .shared_state import SharedState, in_words

NAME_BYTES = 1024
"""Room for the name of the kernel that is being called, in memory that outlives the worker."""
FILE = "file:"
"""Precedes, in that memory, the path of the kernel file that is being imported."""


class TamperingError(BaseException):
    """A kernel left shared state changed.  No `Exception`, so that nothing on its way takes it for the failure of a call."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(kernel, reason)
        self.kernel, self.reason = kernel, reason


class CallWatch:
    """Names the kernel or file whose code runs, and compares the shared state after a kernel's first call and after each task."""

    def __init__(self, calling: Any) -> None:
        """
        Args:
            calling: array of `NAME_BYTES` characters shared with the runner.
        """
        self._calling = calling
        self.state = SharedState()
        self._examined: set[str] = set()
        """Kernels and arms after whose call the shared state was compared."""
        self._examine_each_call = False

    def start_anew(self) -> None:
        """Take the shared state as it is now for unchanged: the harness itself changed it."""
        self.state = SharedState()

    def begin(self, task: Task) -> None:
        """Note that a task begins."""
        self.note(task.kernel if isinstance(task, CheckTask) else "")
        self._examined.clear()
        self._examine_each_call = isinstance(task, MeasureTask) and task.examine_each_call

    def call(self, name: str) -> None:
        """Note that the kernel or arm `name` is about to be called.  Precedes every timed call, so it must stay cheap.

        Raises:
            TamperingError: the one that was called before left shared state changed.
        """
        before = self.named
        if before and (before not in self._examined or self._examine_each_call):
            self._examined.add(before)
            if changes := self.state.changes():
                raise TamperingError(before, in_words(changes))
        self.note(name)

    def note(self, name: str) -> None:
        """Name what is to blame if the process dies or falls silent from now on."""
        self._calling.value = name.encode()[: NAME_BYTES - 1]

    def note_file(self, file: str) -> None:
        """Name the kernel file that is being imported; nothing, where `file` is empty."""
        self.note(f"{FILE}{file}" if file else "")

    @property
    def named(self) -> str:
        return read_name(self._calling)

    def untampered(self, task: Task, reply: Reply, revisions: Revisions) -> Reply:
        """The reply, unless shared state was left changed since the task began: then nothing it says can be relied on."""
        changes = self.state.changes()
        if not changes:
            self.state.extend()
            return reply
        if isinstance(reply, Failure) and reply.tampered:
            return reply
        reason = in_words(changes)
        if isinstance(reply, Failure):
            reason += f"; then: {reply.reason}"
        return Failure(status=Status.CRASHED, reason=reason, kernel=self._changed_by(task, revisions), tampered=True)

    def _changed_by(self, task: Task, revisions: Revisions) -> str:
        """The kernel of the task that left shared state changed, as far as that is known."""
        if isinstance(task, CheckTask):
            return task.kernel
        kernels = kernels_of(task)
        file = self.state.changed_by()
        written = [name for name in kernels if file and revisions.kernel(name)[0].file == file]
        if len(written) == 1:
            return written[0]
        return kernels[0] if len(kernels) == 1 else ""


def read_name(calling: Any) -> str:
    """The name that a worker's shared array holds; empty when no kernel was being called."""
    return bytes(calling.value).decode(errors="replace")
