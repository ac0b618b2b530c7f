"""The boards of a host seen from the driver: one process each, started again when it is lost, given up when the board is unfit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import msgspec

from ..device import Device
from ..device.boards import cores_beside, label_of
from ..errors import UsageError
from ..runner.case_kernels import CaseKernels
from ..runner.run.command import RunRequest
from ..runner.session import ops_of
from ..runner.workers.child import interrupts_held_back
from ..runner.workers.process import IMPORT_S
from .board_process import BoardSetup, Checked, Fault, Lease, Note, Ready, Received, Step, Unfit, board_main, portable

START_METHOD = "spawn"
"""How a board's process is started: afresh, so that it inherits no thread and no connection to the driver."""
MOST_STARTS = 3
"""Starts of one board's process; a board whose process was lost so often is given up."""
RESTART_WAIT_S = 30.0
"""Seconds that a restarted process waits for the lock and the memory of the one before it."""
STOP_S = 10.0
"""Seconds that a process gets to end its workers."""
POLL_S = 0.5
SILENT_TIMES = 3
"""A board that has said nothing for so many times the silence that one of its workers is allowed hangs itself, such as in a call of the
driver's library on a GPU that is lost."""


class Board:
    """One board: its process, what it is leased, and whether it can still measure."""

    def __init__(self, setup: BoardSetup) -> None:
        self.setup = setup
        self.lease: Lease | None = None
        """What it works on; None while it has nothing, or has no process yet."""
        self.ready = False
        """Whether it holds the device and takes leases."""
        self.unfit = ""
        """Why it is given up; empty while it is not."""
        self.doing = ""
        """What it does now, in words."""
        self.starts = 0
        self.heard = 0.0
        """When it said something, or was given something, last: `time.monotonic`."""
        self._process: Any = None
        self._lifeline: Connection | None = None
        self.line: Connection

    @property
    def label(self) -> str:
        return self.setup.label

    @property
    def uuid(self) -> str:
        return self.setup.device.uuid

    @property
    def idle(self) -> bool:
        """Whether it can be leased something now."""
        return self.ready and not self.unfit and self.lease is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start its process, which reports when it is ready."""
        context: Any = multiprocessing.get_context(START_METHOD)
        setup = self.setup
        if self.starts:
            setup = msgspec.structs.replace(setup, wait_s=max(setup.wait_s, RESTART_WAIT_S))
        self.starts += 1
        self.heard = time.monotonic()
        self.ready, self.doing = False, "start"
        self.line, theirs = context.Pipe()
        lifeline, self._lifeline = context.Pipe(duplex=False)
        ours = () if START_METHOD == "spawn" else (self.line, self._lifeline)
        self._process = context.Process(target=board_main, args=(theirs, lifeline, setup, ours), name=f"fusebench-{setup.label}")
        try:
            with interrupts_held_back():
                self._process.start()
        finally:
            theirs.close()
            lifeline.close()

    def give(self, lease: Lease, doing: str) -> None:
        """Have it work on `lease`; a process that is gone is noticed when its answer is awaited."""
        self.lease, self.doing, self.heard = lease, doing, time.monotonic()
        with suppress(OSError):
            self.line.send(lease)

    def dismiss(self) -> None:
        """Ask the process to leave, unless it is at work."""
        if self._process is not None and self.lease is None and not self.unfit:
            with suppress(OSError, ValueError):
                self.line.send(None)

    def end(self, wait_s: float = 0.0) -> None:
        """End the process and, with it, its workers."""
        if self._process is None:
            return
        self._process.join(wait_s)
        if self._process.is_alive():
            self.kill()
        self._process.join(STOP_S)
        self.line.close()
        if self._lifeline is not None:
            self._lifeline.close()
        self._process = None

    def hangs(self) -> float | None:
        """The seconds of its silence, where it should have said something within them; None while it has time."""
        if self.ready and self.lease is None:
            return None
        allowed = SILENT_TIMES * max(self.setup.silence_s, IMPORT_S)
        if not self.ready:  # it waits for the lock, then for an idle device
            allowed += 2 * max(self.setup.wait_s, RESTART_WAIT_S)
        silent = time.monotonic() - self.heard
        return silent if silent > allowed else None

    def kill(self) -> None:
        """End the process at once."""
        with suppress(OSError):
            os.kill(self._process.pid, signal.SIGKILL)

    def how_it_ended(self) -> str:
        """The end of the process in words."""
        self._process.join(STOP_S)
        code = self._process.exitcode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"


def setups_of(request: RunRequest, devices: Sequence[Device], units: Mapping[str, CaseKernels]) -> list[BoardSetup]:
    """What each board's process needs to know to measure `units`."""
    shared = BoardSetup(
        device=devices[0],
        label="",
        cores=None,
        units={key: portable(unit) for key, unit in units.items()},
        roots=tuple(request.collection.roots),
        ops=ops_of(request.cases),
        excluded=dict(request.collection.excluded),
        project_root=request.project.root,
        plan=request.plan,
        timer=request.timer,
        silence_s=request.silence_s,
        wait_s=request.wait_s,
    )
    return [
        msgspec.structs.replace(shared, device=device, label=label_of(device), cores=near)
        for device, near in zip(devices, cores_beside(devices), strict=True)
    ]


Answer = tuple[Board, Lease | None, Checked | Received | None]
"""A board that became free, with its lease and the answer to it.  Both are None of a board that became ready; a lease without an answer
was lost with the process or the board, and belongs to another one."""


class Boards:
    """All boards of a run.  A context manager: entering it starts their processes, leaving it ends them."""

    def __init__(
        self, setups: Sequence[BoardSetup], *, warn: Callable[[str], None], note: Callable[[str], None], show: Callable[[str], None]
    ) -> None:
        """
        Args:
            warn: takes what a reader of the record should know.
            note: takes what a reader of the screen should know.
            show: takes what all boards do now, a line each.
        """
        self.boards = [Board(setup) for setup in setups]
        self._warn, self._note, self._show = warn, note, show

    def __enter__(self) -> Boards:
        try:
            for board in self.boards:
                board.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(0.0 if kind is not None else STOP_S)

    def close(self, wait_s: float = 0.0) -> None:
        """End every process; whatever is not in the driver's journal is lost."""
        for board in self.boards:
            board.dismiss()
        for board in self.boards:
            board.end(wait_s if board.lease is None else 0.0)

    @property
    def alive(self) -> list[Board]:
        """The boards that are not given up."""
        return [board for board in self.boards if not board.unfit]

    @property
    def why_none(self) -> str:
        """Why no board is left."""
        return "; ".join(f"{board.label}: {board.unfit}" for board in self.boards)

    def answers(self) -> Iterator[Answer]:
        """What the boards say next; waits for a moment where they say nothing."""
        lines = {board.line: board for board in self.alive}
        heard = wait(list(lines), timeout=POLL_S) if lines else []
        for line in heard:
            assert isinstance(line, Connection)
            lines[line].heard = time.monotonic()
            answer = self._heard(lines[line])
            if answer is not None:
                yield answer
        for board in self.alive:
            if (silent := board.hangs()) is not None:
                board.kill()
                yield self._given_up(board, f"no sign of life for {silent:.0f} s")
        self._show("\n".join(f"{board.label}  {'given up' if board.unfit else board.doing}" for board in self.boards))

    def _heard(self, board: Board) -> Answer | None:
        try:
            message = board.line.recv()
        except (EOFError, OSError):
            return self._lost(board)
        match message:
            case Step():
                counted = f" {message.done}/{message.total}" if message.total else ""
                board.doing = f"{_name(board.lease)}{message.text}{counted}"
            case Note():
                self._note(f"{board.label}: {message.text}")
            case Ready():
                board.ready = True
                board.doing = "waits"
                for text in message.warnings:
                    self._warn(f"{board.label}: {text}")
                return board, None, None
            case Unfit():
                return self._given_up(board, message.reason)
            case Fault():
                raise UsageError(message.text) if message.usage else RuntimeError(f"{board.label}: {message.text}")
            case Checked() | Received():
                lease, board.lease, board.doing = board.lease, None, "waits"
                return board, lease, message
        return None

    def _lost(self, board: Board) -> Answer:
        how = board.how_it_ended()
        lease, board.lease = board.lease, None
        board.end()
        if board.starts >= MOST_STARTS:
            return self._given_up(board, f"its process ended {board.starts} times, at last by {how}", lease)
        self._warn(f"{board.label}: its process ended ({how}) and is started again; what it measured then goes to the next free board")
        board.start()
        return board, lease, None

    def _given_up(self, board: Board, reason: str, lease: Lease | None = None) -> Answer:
        lease, board.lease = lease or board.lease, None
        board.unfit, board.ready = reason, False
        board.end(STOP_S)
        self._warn(f"{board.label} is left out from here on: {reason}")
        return board, lease, None


def _name(lease: Lease | None) -> str:
    return f"{key}  " if (key := getattr(lease, "key", "")) else ""
