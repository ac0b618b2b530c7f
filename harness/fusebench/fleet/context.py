"""The driver's side of a run on several boards: its context, and the findings that it has in place of measurements of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from ..device import Device
from ..runner.context import MeasuringContext, Reporter
from ..runner.run.command import RunRequest
from ..runner.run.options import RunOptions
from ..runner.workers.pool import WorkerPool
from ..runner.workers.protocol import Measured
from ..schema import CaseSummary, Environment, Result
from ..store.run_folder import WARM_UP
from .board_process import Received
from .boards import Board
from .joining import BOARDS


class FleetContext(MeasuringContext):
    """The driver's context: it measures nothing itself, and its environment is that of all boards."""

    def __init__(self, devices: Sequence[Device], request: RunRequest, reporter: Reporter, options: RunOptions, pool: WorkerPool) -> None:
        """`pool`: no process of it is ever started."""
        spent = options.resumed.run.spending if options.resumed is not None else None
        super().__init__(devices[0], request.project.root, reporter, pool=pool, plan=request.plan, spent=spent)
        self.environment_at_start = msgspec.structs.replace(
            self.environment_at_start, device_uuid=",".join(device.uuid for device in devices)
        )
        self.states: dict[str, Any] = {}
        """By UUID, the state of each board."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The boards watch themselves."""

    def environment(self) -> Environment:
        state = {BOARDS: dict(self.states), WARM_UP: dict(self.warm_up)}
        return msgspec.structs.replace(self.environment_at_start, state=state)


class ReceivedWork:
    """A case's work as the engine takes it, with the findings that a board sent."""

    def __init__(self, received: Received | None, board: Board | None, reporter: Reporter) -> None:
        """`received`: None of a case for which the budget left no time."""
        self.received, self._board, self._reporter = received, board, reporter
        self.summary: CaseSummary | None = None
        if received is not None and received.summary is not None and board is not None:
            self.summary = msgspec.structs.replace(received.summary, board=board.uuid)

    @property
    def results(self) -> list[Result]:
        return self.received.results if self.received is not None else []

    @property
    def replies(self) -> list[Measured]:
        return self.received.replies if self.received is not None else []

    @property
    def seconds(self) -> float:
        return self.received.seconds if self.received is not None else 0.0

    def measure(self, seconds: float | None) -> None:
        """Show what was measured elsewhere."""
        if self.received is None or self._board is None:
            return
        self._reporter.line(f"on {self._board.label}, {self.received.seconds:.1f} s")
        for result in self.received.results:
            self._reporter.result(result)
