"""Warm-up: work until the SM clock has stopped changing, not for a fixed count.

An idle GPU runs at a fraction of its clock (345 of 1980 MHz on an H200) and needs milliseconds to seconds of work to reach its steady
clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

WINDOW_S = 0.3
"""Seconds of a steady clock that count: several times the 20 to 100 ms at which the driver refreshes its reading."""

TOLERANCE_MHZ = 15
"""Change in MHz within the window that counts as none: one clock step of current data-centre GPUs."""

LEVEL_S = 1.0
LEVEL_SHARE = 0.01
"""A board at its power limit is never at one clock: it swings around a level (1500 to 1980 MHz within a second under large bfloat16 matrix
products on an H200 at 700 W).  It has settled when the means of the last two stretches of `LEVEL_S` agree within this share."""

MINIMUM_S = 0.5
"""Seconds of work in any case: the idle clock, read before the driver noticed the work, must not pass for a steady one."""

TOP_S = 0.2
"""Seconds that suffice where every reading showed the board's highest clock.  No idle clock looks like that, and this is twice the driver's
slowest refresh, so the last reading is from this work."""

MAXIMUM_S = 10.0
"""Seconds until the warm-up ends without a steady clock.  A level that still drifts is heading for a thermal limit; the run records it."""


class SteadyClock(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a warm-up."""

    steady: bool
    swings: bool
    """Whether the clock settled around a level, not at one value: the board is at its power limit."""
    start_mhz: int | None
    end_mhz: int | None
    lowest_mhz: int | None
    highest_mhz: int | None
    seconds: float
    readings: int
    unreadable: int
    """Number of failed readings."""
    reason: str = ""
    """Why the clock is not steady; empty when it is."""


def wait_for_steady_clock(
    read_mhz: Callable[[], int | None],
    do_work: Callable[[], None],
    *,
    top_mhz: int | None = None,
    window_s: float = WINDOW_S,
    tolerance_mhz: int = TOLERANCE_MHZ,
    minimum_s: float = MINIMUM_S,
    maximum_s: float = MAXIMUM_S,
    clock: Callable[[], float] = time.monotonic,
) -> SteadyClock:
    """Alternate `do_work` (which must return only when the device has finished it) and `read_mhz` until the clock is steady.

    The clock is steady in one of three cases: the readings of the last `window_s` seconds (the last three, where fewer fit) lie within
    `tolerance_mhz` of each other, and `minimum_s` have passed; all of at least `TOP_S` show `top_mhz`, the board's highest clock; or the
    clock swings around a level that has stopped moving (`LEVEL_SHARE`).  An unreadable clock gets `minimum_s` of work and is reported as
    not steady.
    """
    start = clock()
    readings: list[tuple[float, int]] = []
    unreadable = 0
    while True:
        do_work()
        mhz = read_mhz()
        elapsed = clock() - start
        if mhz is None:
            unreadable += 1
        else:
            readings.append((elapsed, mhz))
        if top_mhz is not None and not unreadable and _stays_at_the_top(readings, elapsed, top_mhz - tolerance_mhz):
            return _seen(readings, unreadable, elapsed, "")
        if elapsed < minimum_s:
            continue
        if not readings:
            return _seen(readings, unreadable, elapsed, f"the SM clock could not be read ({unreadable} attempts)")
        if _stands_still(readings, elapsed, window_s, tolerance_mhz):
            return _seen(readings, unreadable, elapsed, "")
        if _level_stands_still(readings, elapsed):
            return _seen(readings, unreadable, elapsed, "", swings=True)
        if elapsed >= maximum_s:
            recent = _recent(readings, elapsed, window_s)
            moved = f"the SM clock still moved between {min(recent)} and {max(recent)} MHz after {elapsed:.1f} s"
            return _seen(readings, unreadable, elapsed, moved)


def settle(device_kind: str, gpu_uuid: str, work: Callable[[], None]) -> dict[str, Any]:
    """Warm a device up with `work`: a GPU until its SM clock is steady; on a CPU one round of work is the warm-up.

    Returns the `SteadyClock` as plain values; empty on a CPU.
    """
    if device_kind == "cpu":
        work()
        return {}
    from .nvml import open_monitor

    monitor = open_monitor()
    top_mhz = monitor.read(gpu_uuid).max_sm_mhz
    seen = wait_for_steady_clock(lambda: monitor.read(gpu_uuid).sm_mhz, work, top_mhz=top_mhz)
    return msgspec.to_builtins(seen)  # type: ignore[no-any-return]


def _recent(readings: list[tuple[float, int]], now: float, window_s: float) -> list[int]:
    within = sum(at >= now - window_s for at, _ in readings)
    return [mhz for _, mhz in readings[-max(within, 3) :]]


def _stays_at_the_top(readings: list[tuple[float, int]], now: float, lowest_mhz: int) -> bool:
    return now >= TOP_S and len(readings) >= 3 and all(mhz >= lowest_mhz for _, mhz in readings)


def _stands_still(readings: list[tuple[float, int]], now: float, window_s: float, tolerance_mhz: int) -> bool:
    recent = _recent(readings, now, window_s)
    covered = readings[0][0] <= now - window_s
    return covered and len(recent) >= 3 and max(recent) - min(recent) <= tolerance_mhz


def _level_stands_still(readings: list[tuple[float, int]], now: float) -> bool:
    last = [mhz for at, mhz in readings if at >= now - LEVEL_S]
    before = [mhz for at, mhz in readings if now - 2 * LEVEL_S <= at < now - LEVEL_S]
    covered = readings[0][0] <= now - 2 * LEVEL_S
    if not covered or min(len(last), len(before)) < 3:
        return False
    return abs(statistics.fmean(last) / statistics.fmean(before) - 1) <= LEVEL_SHARE


def _seen(readings: list[tuple[float, int]], unreadable: int, seconds: float, reason: str, *, swings: bool = False) -> SteadyClock:
    values = [mhz for _, mhz in readings]
    return SteadyClock(
        steady=not reason,
        swings=swings,
        start_mhz=values[0] if values else None,
        end_mhz=values[-1] if values else None,
        lowest_mhz=min(values, default=None),
        highest_mhz=max(values, default=None),
        seconds=seconds,
        readings=len(values),
        unreadable=unreadable,
        reason=reason,
    )
