"""The state that the engine and its strategies share: device, workers, monitor, plan, timer, phases, reporter and warnings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from ..device import Device, EnvironmentMonitor, environment_of
from ..errors import DeviceUnfitError
from ..registry import Problem
from ..schema import Case, Environment, Result, SamplingPlan, Spending
from .workers.interference import Worker, measure_with_retry
from .workers.pool import WorkerPool
from .workers.process import WorkerProcess
from .workers.protocol import Failure, Measured, MeasureTask, Progress, kernels_of

CHECK = "accuracy checks"
"""The phase of the accuracy gate; the phases of timing are named in `timing.measure`."""
AHEAD = "checks of several processes, with compilation"
"""The phase in which several processes compile and check the kernels of all cases; the next phase checks what it leaves out."""
FIRST_START = "start of the first process"
"""The phase in which the native worker does so before the checks of the first case, or after its loss."""
START = "start of further processes"
"""The phase in which processes beyond the first import torch and the kernels, and start the profiler."""


class Reporter(Protocol):
    """Receives progress; the command line chooses the display.  Every method may be called often; none may raise."""

    def begin(self) -> None:
        """The measurement starts."""

    def case(self, number: int, cases: int, case: Case, shape: str) -> None:
        """Case `number` (from 1) of `cases` starts."""

    def step(self, text: str, done: int = 0, total: int = 0) -> None:
        """The current step within the case, `done` of `total` where that is known."""

    def result(self, result: Result) -> None:
        """A kernel's result on a case is final."""

    def line(self, text: str, *, failed: bool = False) -> None:
        """Something about the case is final, in words; `failed` asks for attention."""

    def note(self, text: str) -> None:
        """Something a reader should know."""

    def end(self) -> None:
        """The measurement is over, complete or not."""


class PhaseTimer:
    """Adds up seconds by phase and by kernel, from several threads; `spending` may be read at any time."""

    def __init__(self, earlier: Spending | None = None) -> None:
        """`earlier`: the spending of the run that this one resumes."""
        before = earlier if earlier is not None else Spending(total_s=0.0)
        self._started = time.monotonic() - before.total_s
        self._phases: Counter[str] = Counter(before.phases_s)
        self._kernels: Counter[str] = Counter(before.kernels_s)

    def add(self, phases: Mapping[str, float], kernels: Mapping[str, float] | None = None) -> None:
        """Add seconds by phase, and the share of them that belongs to single kernels."""
        self._phases.update(phases)
        self._kernels.update(kernels or {})

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of the block to `phase`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - began})

    def spending(self) -> Spending:
        """Seconds in all, by phase and by kernel, the largest first."""
        return Spending(
            total_s=time.monotonic() - self._started,
            phases_s=dict(self._phases.most_common()),
            kernels_s=dict(self._kernels.most_common()),
        )


class Context:
    """The state that every strategy needs, with or without worker processes."""

    def __init__(self, device: Device, project_root: Path, reporter: Reporter) -> None:
        """`project_root`: the checkout whose commit the record names."""
        self.device = device
        self.reporter = reporter
        self.warnings: list[str] = []
        self.created = datetime.now(UTC)
        self.project_root = project_root
        self.environment_at_start = environment_of(device, project_root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is held."""

    def warn(self, text: str) -> None:
        """Keep a warning for the record and show it now."""
        self.warnings.append(text)
        self.reporter.note(text)

    def note_unloaded(self, problems: Sequence[Problem], ops: AbstractCollection[str]) -> bool:
        """Add a warning for each kernel file of `ops` that does not load; returns whether there are any."""
        unloaded = [f"not loaded: {problem}" for problem in problems if problem.op in ops]
        self.warnings += unloaded
        return bool(unloaded)

    @property
    def distinct_warnings(self) -> list[str]:
        """The warnings for the record, each once, in order."""
        return list(dict.fromkeys(self.warnings))

    @property
    def created_text(self) -> str:
        """Time at which the measurement was set up: ISO 8601, to the second."""
        return self.created.isoformat(timespec="seconds")

    def environment(self) -> Environment:
        """The environment for the record."""
        return self.environment_at_start


class MeasuringContext(Context):
    """A context with worker processes.  Entered, it watches the device; left, it ends every worker but the pool's first two."""

    def __init__(
        self,
        device: Device,
        project_root: Path,
        reporter: Reporter,
        *,
        pool: WorkerPool,
        plan: SamplingPlan,
        spent: Spending | None = None,
    ) -> None:
        """`spent`: the spending of the run that this one resumes."""
        super().__init__(device, project_root, reporter)
        self.pool = pool
        self.plan = plan
        self.phases = PhaseTimer(spent)
        self.monitor = EnvironmentMonitor(device)
        self.timer, self.timer_fallback = pool.timer, ""
        """The timer in use (the requested one until the first measurement names it), and why it is not the default."""
        self.warm_up: dict[str, Any] = {}
        """Warm-up of the device's clocks, by case and process."""
        self._stack = ExitStack()
        self._confirms = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.monitor)
            stack.callback(self.pool.dismiss_fresh)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def fresh(self, count: int) -> Sequence[WorkerProcess]:
        """`count` fresh workers; the time of their start is noted."""
        with self.phases.timed(START):
            return self.pool.fresh(count)

    def confirming(self, count: int) -> Sequence[WorkerProcess]:
        """`count` fresh workers of which none took part in a first measurement."""
        if not self._confirms:
            self.pool.dismiss_fresh()
            self._confirms = True
        return self.fresh(count)

    def start_first(self) -> None:
        """Have the native worker ready, and note the time of its start; a failure shows again, with its reason, when it is asked."""
        with self.phases.timed(FIRST_START):
            self.pool.native.until_ready()

    def ask(self, task: MeasureTask, worker: Worker, doing: str = "measure") -> Measured | Failure:
        """The worker's reply to `task`, with a retry on interference.

        Args:
            doing: text that the reporter shows meanwhile.

        Raises:
            DeviceUnfitError: interference on every retry, or the timer lost records.
        """

        def show(progress: Progress) -> None:
            # While an arm is warmed up, its step says so; while rounds are timed, counts are enough.
            self.reporter.step(f"{doing}: {progress.text}" if progress.kernel else doing, progress.done, progress.total)

        def measure(task: MeasureTask) -> Measured | Failure:
            return measure_with_retry(task, worker, self.monitor, self.device, on_progress=show, warn=self.warn)

        reply = measure(task)
        if isinstance(reply, Failure) and reply.tampered and not reply.kernel:
            self.warn(f"case {task.case.key}: measured again, with a look after every call, because some kernel spoiled it: {reply.reason}")
            reply = measure(msgspec.structs.replace(task, examine_each_call=True))
        if isinstance(reply, Failure):
            self._note_failure(task, reply, worker)
        return reply

    def _note_failure(self, task: MeasureTask, failure: Failure, worker: Worker) -> None:
        """Keep a kernel's failure for the cases that follow.

        Raises:
            DeviceUnfitError: it took the process down, and no other process can use the device: no kernel is to blame.
        """
        if (failure.broken or failure.lost) and isinstance(worker, WorkerProcess):
            start = worker.until_ready()
            if start is not None and start.unfit:
                raise DeviceUnfitError(f"case {task.case.key}: {start.reason}; before that: {failure.reason}")
        if failure.kernel in kernels_of(task):
            self.pool.failures.note(failure.kernel, task.case.key, failure)

    def note_timer(self, reply: Measured) -> None:
        """Keep which timer measured."""
        self.timer, self.timer_fallback = reply.timer, reply.timer_fallback

    def environment(self) -> Environment:
        """The environment with the monitor's summary and the warm-ups so far."""
        state = {**self.environment_at_start.state, "during": self.monitor.summary(), "warm_up": dict(self.warm_up)}
        return msgspec.structs.replace(self.environment_at_start, state=state)
