"""Evaluations of many clients: one queue and one worker thread per device, bounded everywhere.

The processes that a worker thread starts end with that thread, so each thread lives as long as the queue and keeps one `Evaluator` warm.
"""

from __future__ import annotations

import queue
import secrets
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from ...errors import FusebenchError, UsageError
from ...schema.evaluation import Evaluation, Stage
from ..shared.evaluation_work import MOST_SOURCE_BYTES, Catalogue, EvaluationOptions, Judge, read_candidate, run_evaluation

if TYPE_CHECKING:
    from ...device import Device

MOST_WAITING = 64
"""Tasks that wait for one device; the next is refused until one is done."""
MOST_DONE = 256
"""Finished tasks that are kept for their clients; the oldest go first."""
YIELD_S = 0.5
"""Seconds between two looks, of an idle worker thread, at whether another process wants its device."""
CLOSE_S = 10.0
"""Seconds that `close` waits for a worker thread whose candidate was killed."""
_CANDIDATE = "candidate.py"


class QueueFullError(UsageError):
    """More evaluations wait than the queue takes."""


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends: the candidate as `source`, or as a `file` below the server's folder."""

    op: Annotated[str, msgspec.Meta(max_length=200)]
    source: str | None = None
    file: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    suite: Annotated[list[Annotated[str, msgspec.Meta(max_length=200)]], msgspec.Meta(max_length=20)] | None = None
    """Names of suites; the suite of the op's name unless given."""
    case: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    """Globs of cases, with commas between them."""
    stage: Stage = Stage.QUICK
    device: Annotated[str, msgspec.Meta(max_length=20)] = "auto"
    """`auto` is the device with the shortest queue, else one that `/health` names, such as `cuda:1`."""
    seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] | None = None
    memory_bytes: Annotated[int, msgspec.Meta(ge=2**26, le=2**50)] | None = None


class State(StrEnum):
    """Where a task is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Ended without a document, by a fault of the server or of its device: `error` says which."""


@dataclass(eq=False)
class Task:
    """One evaluation that a client asked for."""

    id: str
    device: str
    file: str
    """Path as the client gave it; empty for a source."""
    source: bytes
    options: EvaluationOptions
    state: State = State.QUEUED
    evaluation: Evaluation | None = None
    error: str = ""
    finished: threading.Event = field(default_factory=threading.Event)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A task as clients see it."""

    task: str
    state: State
    device: str
    ahead: int = 0
    """Tasks before it in its queue."""
    evaluation: Evaluation | None = None
    error: str = ""


class _Lane:
    """One device: its waiting tasks and its worker thread."""

    def __init__(self, device: Device, work: Callable[[_Lane], None]) -> None:
        self.device = device
        self.waiting: queue.Queue[Task | None] = queue.Queue(MOST_WAITING + 1)  # and the word to end
        self.running: Task | None = None
        self.evaluator: Judge | None = None
        self.thread = threading.Thread(target=work, args=(self,), name=f"evaluations on {device.torch_name}", daemon=True)

    def ahead_of(self, task: Task) -> int:
        with self.waiting.mutex:
            listed = [one for one in self.waiting.queue if one is not None]
        return (listed.index(task) if task in listed else 0) + (self.running is not None)

    @property
    def load(self) -> int:
        return self.waiting.qsize() + (self.running is not None)


class EvaluationQueue:
    """Tasks by id, and a lane per device.  A context manager: leaving it kills the candidates in progress."""

    def __init__(self, devices: Sequence[Device], catalogue: Catalogue, make_judge: Callable[[Device], Judge]) -> None:
        self._catalogue, self._make_judge = catalogue, make_judge
        self._tasks: dict[str, Task] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._lanes = {device.torch_name: _Lane(device, self._work) for device in devices}

    def __enter__(self) -> EvaluationQueue:
        for lane in self._lanes.values():
            lane.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, order: Order) -> Task:
        """Put an order into a queue.

        Raises:
            UsageError: an order that cannot be carried out; the message names the next step.
            QueueFullError: too many tasks wait.
        """
        source, shown = self._candidate(order)
        for name in order.suite or ():
            if "/" in name.removeprefix("models/") or name.endswith(".toml"):
                raise UsageError(f"suite {name!r}: found a path, expected the name of a suite (see `fusebench list suites`)")
        options = EvaluationOptions(
            op=order.op, suite=order.suite, case=order.case, stage=order.stage, seconds=order.seconds, memory_bytes=order.memory_bytes
        )
        self._catalogue.select(options)  # refuses names that do not exist before the client waits
        with self._lock:
            lane = self._lane(order.device)
            if self._closing or lane.waiting.qsize() >= MOST_WAITING:
                raise QueueFullError(f"{MOST_WAITING} evaluations wait for {lane.device.torch_name}; try again when one is done")
            task = Task(secrets.token_hex(8), lane.device.torch_name, shown, source, options)
            self._tasks[task.id] = task
            self._forget_old()
            lane.waiting.put_nowait(task)
        return task

    def answer(self, task_id: str) -> Answer | None:
        """The task as it stands; None if there is none, or it was forgotten."""
        with self._lock:
            task = self._tasks.get(task_id)
        if task is None:
            return None
        ahead = self._lanes[task.device].ahead_of(task) if task.state is State.QUEUED else 0
        return Answer(task=task.id, state=task.state, device=task.device, ahead=ahead, evaluation=task.evaluation, error=task.error)

    def health(self) -> list[dict[str, object]]:
        """Each device with its queue."""
        return [
            {"device": name, "name": lane.device.name, "queued": lane.waiting.qsize(), "running": lane.running is not None}
            for name, lane in self._lanes.items()
        ]

    def cancel(self, task: Task) -> None:
        """Leave a task out that nobody waits for any more; one in progress is stopped."""
        lane = self._lanes[task.device]
        with self._lock:
            self._tasks.pop(task.id, None)
            if lane.running is task and lane.evaluator is not None:
                lane.evaluator.stop()

    def close(self) -> None:
        """Stop the evaluations in progress, end every process of the evaluators, and leave waiting tasks undone."""
        with self._lock:
            self._closing = True
            for lane in self._lanes.values():
                with suppress(queue.Empty):
                    while True:
                        lane.waiting.get_nowait()
                lane.waiting.put_nowait(None)
                if lane.evaluator is not None:
                    lane.evaluator.stop()
        for lane in self._lanes.values():
            if lane.thread.is_alive():
                lane.thread.join(CLOSE_S)

    def _lane(self, device: str) -> _Lane:
        if device == "auto":
            return min(self._lanes.values(), key=lambda lane: lane.load)
        if device not in self._lanes:
            raise UsageError(f"device {device!r}: this server has {', '.join(self._lanes)}; pass one of them or auto")
        return self._lanes[device]

    def _forget_old(self) -> None:
        done = [task.id for task in self._tasks.values() if task.finished.is_set()]
        for task_id in done[: max(0, len(done) - MOST_DONE)]:
            del self._tasks[task_id]

    def _candidate(self, order: Order) -> tuple[bytes, str]:
        """The candidate's bytes, and its path as given."""
        if (order.source is None) == (order.file is None):
            raise UsageError("pass either `source`, the text of the kernel file, or `file`, its path below the server's folder")
        if order.source is not None:
            source = order.source.encode("utf-8", "replace")
            if len(source) > MOST_SOURCE_BYTES:
                raise UsageError(f"`source` has {len(source)} bytes, expected at most {MOST_SOURCE_BYTES}; a candidate is one kernel file")
            return source, ""
        folder = Path.cwd().resolve()
        assert order.file is not None
        with suppress(OSError, ValueError):
            file = (folder / order.file).resolve()
            if file.is_relative_to(folder) and file.suffix == ".py":
                return read_candidate(file), order.file
        raise UsageError(f"`file` {order.file!r}: expected a .py file below the folder that the server was started in; or pass `source`")

    def _work(self, lane: _Lane) -> None:
        """The worker thread of a device."""
        while (task := self._next(lane)) is not None:
            with self._lock:
                if self._closing or task.id not in self._tasks:
                    continue
                lane.running, task.state = task, State.RUNNING
            try:
                if lane.evaluator is None:
                    lane.evaluator = self._make_judge(lane.device)
                task.evaluation = self._evaluate(task, lane.evaluator)
                task.state = State.DONE
            except Exception as error:  # noqa: BLE001 - the next task must not suffer from it
                task.error = str(error) if isinstance(error, FusebenchError) else f"a fault of fusebench: {type(error).__name__}: {error}"
                task.state = State.FAILED
                self._drop_evaluator(lane)
            lane.running = None
            task.source = b""
            task.finished.set()
        self._drop_evaluator(lane)

    def _next(self, lane: _Lane) -> Task | None:
        """The next task; None at the end.  While another process wants the device, the evaluator's processes leave it.

        They hold memory of the device, with which no run finds it idle.
        """
        from ...device import wanted_by_others

        while True:
            task, idle = None, False
            try:
                task = lane.waiting.get(timeout=YIELD_S)
            except queue.Empty:
                idle = True
            if lane.evaluator is not None and wanted_by_others(lane.device):
                self._drop_evaluator(lane)
            if not idle:
                return task

    def _evaluate(self, task: Task, judge: Judge) -> Evaluation:
        with tempfile.TemporaryDirectory(prefix="fusebench_eval_") as folder:
            file = Path(folder, Path(task.file).name if task.file else _CANDIDATE)
            file.write_bytes(task.source)
            return run_evaluation(judge, self._catalogue.request(file, task.options), task.options, shown=task.file)

    def _drop_evaluator(self, lane: _Lane) -> None:
        evaluator, lane.evaluator = lane.evaluator, None
        if evaluator is not None:
            with suppress(Exception):
                evaluator.close()
