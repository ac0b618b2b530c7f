"""The process of one board: it holds the board's lock, watches it, and measures the cases that it is leased.

It runs no kernel itself: kernels run in its worker processes, as in every measurement.  It ends with the process that started it.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from ..device import Device
from ..errors import DeviceUnfitError, FusebenchError, TimerError
from ..registry.declared import CaseFacts, DeclaredOp
from ..runner.case_kernels import CaseKernels
from ..runner.context import MeasuringContext, PhaseTimer
from ..runner.run.measured_case import CaseMeasurement, Remeasurement
from ..runner.session import hold
from ..runner.workers.ahead import Checks, check_ahead
from ..runner.workers.pool import WorkerPool
from ..runner.workers.protocol import Measured
from ..runner.workers.worker.surroundings import settle_in
from ..schema import Accuracy, Case, CaseSummary, Result, SamplingPlan, Spending
from ..store.run_folder import WARM_UP

STEP_S = 0.2
"""Seconds between two messages about progress."""


class BoardSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a board needs to know."""

    device: Device
    label: str
    """`cuda:1`, for people."""
    cores: frozenset[int] | None
    """Cores to stay on; None for all."""
    units: dict[str, CaseKernels]
    """By key, the cases that it may be leased."""
    roots: tuple[Path, ...]
    ops: frozenset[str]
    excluded: dict[str, str]
    project_root: Path
    plan: SamplingPlan
    timer: str
    silence_s: float
    wait_s: float


class CheckLease(msgspec.Struct, frozen=True, kw_only=True):
    """Compile and check these cases ahead."""

    keys: tuple[str, ...]


class CaseLease(msgspec.Struct, frozen=True, kw_only=True):
    """Check and time a case."""

    key: str
    passed: dict[str, Accuracy]
    wrong: dict[str, Accuracy]
    seconds: float | None
    expected_s: float | None


class RemeasureLease(msgspec.Struct, frozen=True, kw_only=True):
    """Remeasure a suspect in fresh processes."""

    key: str
    known: tuple[Result, ...]
    reason: str
    timer: str
    kernels: tuple[str, ...]
    first: int
    before: tuple[Measured, ...]
    processes: int
    looks: int


Lease = CheckLease | CaseLease | RemeasureLease


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The board is held and idle."""

    warnings: tuple[str, ...]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What it does now."""

    text: str
    done: int = 0
    total: int = 0


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader should know."""

    text: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `CheckLease`."""

    checks: Checks
    seconds: float


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a lease of a case: the findings of `CaseMeasurement` or `Remeasurement`."""

    key: str
    results: list[Result]
    summary: CaseSummary | None
    replies: list[Measured]
    seconds: float
    warnings: tuple[str, ...]
    spending: Spending
    state: dict[str, Any]
    """The board's own state, without warm-ups."""


class Unfit(msgspec.Struct, frozen=True, kw_only=True):
    """The board cannot measure; its lease, if it has one, goes to another."""

    reason: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no other board could do either."""

    text: str
    usage: bool


Message = Ready | Step | Note | Checked | Received | Unfit | Fault


def portable(unit: CaseKernels) -> CaseKernels:
    """`unit` without the way to ask its op about other cases, so that another process can have it."""
    if isinstance(unit.op, DeclaredOp):
        return msgspec.structs.replace(unit, op=DeclaredOp(unit.op.declaration, _unasked))
    return unit


def _unasked(op: str, params: Mapping[str, Any]) -> CaseFacts:
    raise AssertionError(f"the process of a board asks no op about cases, and asked {op}")


class _Sender:
    """The reporter of a board's process: sends progress to the driver, from several threads while cases are checked ahead."""

    def __init__(self, line: Connection) -> None:
        self._line, self._last, self._guard = line, 0.0, threading.Lock()

    def send(self, message: Message) -> None:
        """Send the whole message; a connection takes one at a time."""
        with self._guard:
            self._line.send(message)

    def step(self, text: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if now - self._last >= STEP_S:
            self._last = now
            self.send(Step(text=text, done=done, total=total))

    def note(self, text: str) -> None:
        self.send(Note(text=text))

    def begin(self) -> None: ...

    def case(self, number: int, cases: int, case: Case, shape: str) -> None: ...

    def result(self, result: Result) -> None: ...

    def line(self, text: str, *, failed: bool = False) -> None: ...

    def end(self) -> None: ...


def seen_alone(setup: BoardSetup) -> Device:
    """The board's device in a process that sees no other GPU; its messages name it as the user does."""
    index = 0 if setup.device.kind == "cuda" else setup.device.index
    return msgspec.structs.replace(setup.device, index=index, label=setup.label)


def board_main(line: Connection, lifeline: Connection, setup: BoardSetup, inherited: Sequence[Connection] = ()) -> None:
    """The body of the process.

    Args:
        lifeline: end of a pipe whose other end only the driver holds.
        inherited: the driver's ends, of which a forked process has copies.
    """
    for one in inherited:
        one.close()
    settle_in(None, lifeline)
    if setup.cores is not None:
        with suppress(OSError):  # the cores were taken away since
            os.sched_setaffinity(0, setup.cores)
    if setup.device.kind == "cuda":
        # No process of this board makes a context on another one, where it would count as foreign.
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.device.uuid
    try:
        _serve(line, msgspec.structs.replace(setup, device=seen_alone(setup)))
    except (DeviceUnfitError, TimerError) as error:
        message: Message = Unfit(reason=str(error))
    except FusebenchError as error:
        message = Fault(text=str(error), usage=True)
    except (EOFError, ConnectionError):  # the driver is gone
        return
    except Exception:  # noqa: BLE001  the driver raises it
        message = Fault(text=traceback.format_exc(), usage=False)
    else:
        return
    with suppress(OSError):
        line.send(message)


def _serve(line: Connection, setup: BoardSetup) -> None:
    sender = _Sender(line)
    with (
        hold(setup.device, sender, wait_s=setup.wait_s) as warnings,
        WorkerPool(setup.device, setup.roots, setup.silence_s, ops=setup.ops, timer=setup.timer, excluded=setup.excluded) as pool,
        MeasuringContext(setup.device, setup.project_root, sender, pool=pool, plan=setup.plan) as context,
    ):
        sender.send(Ready(warnings=tuple(warnings)))
        while (lease := line.recv()) is not None:
            sender.send(_work_on(lease, setup, context))


def _work_on(lease: Lease, setup: BoardSetup, context: MeasuringContext) -> Checked | Received:
    began = time.monotonic()
    if isinstance(lease, CheckLease):
        units = [setup.units[key] for key in lease.keys]
        checks = check_ahead(context.pool, units, on_step=lambda done, total: context.reporter.step("compile and check", done, total))
        return Checked(checks=checks, seconds=time.monotonic() - began)
    context.phases, told = PhaseTimer(), len(context.warnings)
    unit = setup.units[lease.key]
    work: CaseMeasurement | Remeasurement
    if isinstance(lease, CaseLease):
        work = CaseMeasurement(unit, context, lease.passed, lease.wrong, lease.expected_s)
        work.measure(lease.seconds)
        if work.replies:
            context.note_timer(work.replies[0])
    else:
        context.timer = lease.timer
        work = Remeasurement(unit, context, lease.known, lease.reason, lease.kernels, first=lease.first, before=lease.before)
        work.measure(lease.processes, lease.looks)
    return Received(
        key=lease.key,
        results=work.results,
        summary=work.summary,
        replies=work.replies,
        seconds=time.monotonic() - began,
        warnings=tuple(context.warnings[told:]),
        spending=context.phases.spending(),
        state={name: value for name, value in context.environment().state.items() if name != WARM_UP},
    )
