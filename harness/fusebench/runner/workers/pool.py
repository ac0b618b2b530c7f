"""The worker processes that measure: the native one, and fresh ones that are started when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from ..phases import START, PhaseTimer
from .checking import Workers
from .process import WorkerProcess


class WorkerPool:
    """Processes that live until the context ends, since each takes seconds to import torch and the kernels and to start the profiler.

    They stand still until they are asked, so that one measures at a time.  What they measure of one case does not make them less fresh to
    the next: fresh is a process in which no finding was made that it is to confirm.
    """

    def __init__(self, workers: Workers, phases: PhaseTimer) -> None:
        """`phases`: given the time that starting takes."""
        self.workers = workers
        self._ledger = phases
        self._fresh: list[WorkerProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._fresh:
            worker.dismiss()  # all of them before the first is waited for: each takes a second to leave
        self._stack.close()

    @property
    def native(self) -> WorkerProcess:
        """The one that checks, and measures first."""
        return self.workers.native

    def begin(self, count: int) -> None:
        """Begin to start what is missing of `count` fresh ones, together, beside work that need not be undisturbed."""
        if count > len(self._fresh):
            self._fresh += self._stack.enter_context(self.workers.fresh(count - len(self._fresh)))

    def fresh(self, count: int) -> Sequence[WorkerProcess]:
        """`count` fresh ones, handed out when every one that was begun stands still."""
        with self._ledger.timed(START):
            self.begin(count)
            for worker in self._fresh:
                worker.until_ready()  # a failure shows again, with its reason, when the worker is asked
        return self._fresh[:count]
