"""One session on a device, from its lock to a stored record: the frame around the engine that `run`, `ab`, `calibrate` and `ncu` share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ..device import Device, device_lock, require_idle
from ..faults import interruption_in, what_ended
from ..schema import Case
from .context import Reporter
from .engine import Engine

Record = TypeVar("Record")
R = TypeVar("R", bound=msgspec.Struct)
Interruption = KeyboardInterrupt | Exception


class MeasuringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how long to measure."""

    device: Device
    timer: str = "auto"
    budget_s: float | None = None
    """Seconds for the whole; None for no limit."""
    wait_s: float = 0.0
    """Seconds to wait for a device that is busy or locked."""
    silence_s: float = 300.0
    """Seconds without a sign of life after which a kernel counts as hung."""


class Outcome(msgspec.Struct, Generic[Record], frozen=True, kw_only=True):
    """The result of a session, whole or interrupted."""

    record: Record
    folder: Path | None = None
    """Where the record was written; None if there was nothing to keep."""
    interruption: Interruption | None = None
    """The exception that ended the session early; the caller raises it again after it has made the views of the record."""
    kept: str = ""
    """The part of an interrupted session that is kept, in words."""


@contextmanager
def hold(device: Device, reporter: Reporter, *, wait_s: float) -> Iterator[list[str]]:
    """Hold the device's lock for the body, and find it idle; yields warnings for the record.

    Raises:
        DeviceUnfitError: another run holds the device, or it is not idle, after `wait_s` seconds.
    """
    with device_lock(device, wait_s=wait_s, on_wait=reporter.note):
        yield [*device.warnings, *require_idle(device, wait_s=wait_s, on_wait=reporter.note)]


def attempt(engine: Engine[Any, Any, Any, Any], items: Sequence[Any], warnings: Sequence[str] = ()) -> Interruption | None:
    """Run the engine; returns the exception that ended it early, or None. `warnings`: warnings about the device, for the record."""
    for warning in warnings:
        engine.strategy.context.warn(warning)
    try:
        engine.run(items)
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  what was measured is kept before it is raised again
        return interruption_in(error) or error
    return None


@contextmanager
def signals_held() -> Iterator[list[int]]:
    """Hold Ctrl-C and SIGTERM back for the body, which writes what must not be lost; yields the signals that came meanwhile."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # no signal arrives in another thread
        yield received
        return
    before = {number: signal.signal(number, lambda found, _: received.append(found)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_by(record: R, interruption: Interruption) -> R:
    """The record with the exit code and warning of the exception that ended it; unchanged for Ctrl-C, which says nothing about the
    kernels."""
    ended = what_ended(interruption)
    if ended is None:
        return record
    code, reason = ended
    known: Any = record
    return msgspec.structs.replace(record, exit_code=code, warnings=type(known.warnings)((*known.warnings, reason)))


def ops_of(cases: Sequence[Case]) -> frozenset[str]:
    """The ops of the cases: workers load their kernels only."""
    return frozenset(case.op for case in cases)
