"""Retries on interference: a disturbed measurement is dropped and repeated, after a wait where clocks are held down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ...device import Device, EnvironmentMonitor
from ...device.monitor import BLIND
from ...device.readings import SLOWDOWN_REASONS
from ...errors import DeviceUnfitError
from .protocol import Failure, Measured, MeasureTask, Progress, Reply, Task

INTRUSION_RETRIES = 2
"""Retries of a measurement after something touched the device."""
COOLING_S = 60.0
"""The longest wait for clocks that are held down.  A board that is too hot under load cools within seconds once idle; one that is not
back after a minute has a cause that waiting does not remove."""
COOLING_STEP_S = 1.0


class Worker(Protocol):
    """Whoever answers a measurement."""

    def ask(self, task: Task, on_progress: Callable[[Progress], None]) -> Reply: ...


def measure_with_retry(
    task: MeasureTask,
    worker: Worker,
    monitor: EnvironmentMonitor,
    device: Device,
    *,
    on_progress: Callable[[Progress], None],
    warn: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Measured | Failure:
    """The answer of `worker` to `task`, measured while nothing touched the device.

    Raises:
        DeviceUnfitError: it was touched every time, its clocks stay held down, or the answer is that nothing can be measured on it.
    """
    touched: Sequence[str] = ()
    for attempt in range(INTRUSION_RETRIES + 1):
        began = time.monotonic()
        reply = worker.ask(task, on_progress)
        assert isinstance(reply, Measured | Failure), "a measurement is answered by Measured or Failure"
        if isinstance(reply, Failure) and reply.unfit:
            raise DeviceUnfitError(f"case {task.case.key}: {reply.reason}")
        touched = monitor.intrusions_since(began)
        if isinstance(reply, Failure) and (silent := [text for text in touched if text.startswith(BLIND)]):
            raise DeviceUnfitError(f"case {task.case.key}: {device} answers no more, so no kernel is to blame: {silent[0]}; {reply.reason}")
        if isinstance(reply, Failure) or not touched:
            return reply
        warn(f"case {task.case.key}: measured again, because the device was touched: {'; '.join(touched)}")
        if attempt < INTRUSION_RETRIES and _held_down(touched):
            _cool(task, monitor, device, pause)
    raise DeviceUnfitError(
        f"case {task.case.key}: {device} was touched during each of {INTRUSION_RETRIES + 1} measurements "
        f"({'; '.join(touched)}); run again when it is free"
    )


def _cool(task: MeasureTask, monitor: EnvironmentMonitor, device: Device, pause: Callable[[float], None]) -> None:
    """Let the device rest until its clocks are no longer held down."""
    waited = 0.0
    while True:
        pause(COOLING_STEP_S)
        waited += COOLING_STEP_S
        held = _held_down(monitor.intrusions_since(time.monotonic()))
        if not held:
            return
        if waited >= COOLING_S:
            raise DeviceUnfitError(
                f"case {task.case.key}: {device} still holds its clocks down after {waited:g} s of rest ({'; '.join(held)}); "
                "find out why with `fusebench doctor` and run again"
            )


def _held_down(touched: Sequence[str]) -> list[str]:
    return [text for text in touched if any(reason in text for reason in SLOWDOWN_REASONS)]
