"""The worker processes of one measurement: the native one, the interpreter's, and fresh ones that are started when they are needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ...device import Device
from ...device.cpu_process import expected_settings
from .failures import FailureLog
from .process import WorkerProcess
from .protocol import WorkerSetup

DEFAULT_SILENCE_S = 300.0
"""Seconds without a sign of life after which a kernel counts as hung.  A first torch.compile on two cores takes up to a minute."""


class WorkerPool:
    """Processes that live until the context ends, since each takes seconds to import torch and the kernels and to start the profiler.

    They wait idle until they are asked, so that one measures at a time.  A fresh worker can confirm any finding that it did not make:
    measuring one case does not make it less fresh for the next.
    """

    def __init__(
        self,
        device: Device,
        roots: Sequence[Path],
        silence_s: float = DEFAULT_SILENCE_S,
        *,
        threads: int | None = None,
        base_roots: Sequence[Path] = (),
        ops: Collection[str] | None = None,
        timer: str = "",
        excluded: Mapping[str, str] | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        """
        Args:
            threads: threads of torch in processes that only check; None leaves it to torch.
            base_roots: kernels folders of the base revision.
            ops: ops whose kernels are loaded; None for all.
            timer: the timer that measurements ask for; fresh workers make it ready while they start.  Empty if nothing is timed.
            excluded: files that no worker may import, each with the reason.
            failures: failures of the run so far, where several pools share them.
        """
        self.device = device
        self.roots = tuple(roots)
        self.timer = timer
        self.failures = failures if failures is not None else FailureLog()
        """The kernels and files that failed so far."""

        cpu_process = expected_settings() if timer and device.kind == "cpu" else ""

        def worker(*, interpret: bool = False, timer: str = "") -> WorkerProcess:
            setup = WorkerSetup(
                roots=self.roots,
                base_roots=tuple(base_roots),
                ops=None if ops is None else frozenset(ops),
                device=device.torch_name,
                label=device.label,
                gpu_uuid=device.uuid,
                interpret=interpret,
                threads=threads,
                cpu_process=cpu_process,
                timer=timer,
                excluded=dict(excluded or {}),
            )
            return WorkerProcess(setup, silence_s=silence_s, failures=self.failures)

        self._worker = worker
        self.native = worker()
        """The worker that checks, and measures first."""
        self.interpreter = worker(interpret=True)
        """The worker in which Triton kernels run in the interpreter."""
        self._fresh: list[WorkerProcess] = []

    def begin(self, count: int) -> None:
        """Start the missing ones of `count` fresh workers together, in the background, during work that tolerates interference."""
        missing = self._new(count - len(self._fresh))
        self._fresh += missing  # known before they live: whatever interrupts their start, they end with the pool
        for worker in missing:
            worker.start()

    def fresh(self, count: int) -> Sequence[WorkerProcess]:
        """`count` fresh workers, handed out when every one that was begun waits idle: no start disturbs what another one measures."""
        self.begin(count)
        for worker in self._fresh:
            worker.until_ready()  # a failure shows again, with its reason, when the worker is asked
        return self._fresh[:count]

    def _new(self, count: int) -> list[WorkerProcess]:
        """`count` more native workers, none of them started; none where `count` is negative."""
        return [self._worker(timer=self.timer) for _ in range(count)]

    @contextmanager
    def helpers(self, count: int) -> Iterator[Sequence[WorkerProcess]]:
        """`count` further workers for work that is not timed, which start together and end with the block."""
        workers = [self._worker() for _ in range(count)]
        try:
            for worker in workers:
                worker.start()
            yield workers
        finally:
            _end(workers)

    def dismiss_fresh(self) -> None:
        """End every fresh worker."""
        _end(self._fresh)
        self._fresh = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _end([*self._fresh, self.native, self.interpreter])
        self._fresh = []

    def interrupt(self) -> None:
        """End the native worker and the interpreter at once and for good; whoever waits for a reply gets a failure."""
        self.native.interrupt()
        self.interpreter.interrupt()


def _end(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        worker.dismiss()  # all of them before the first is waited for: each takes a second to leave
    for worker in workers:
        worker.stop()
