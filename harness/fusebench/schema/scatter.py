"""The scatter between runs of one device model: how far apart two runs measure equal code, by class of calls."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .results import CacheState


class Reference(StrEnum):
    """What a kernel's time is compared with before two runs are compared."""

    MACHINE = "machine"
    """The streaming yardsticks of all cases of that duration, and the launch gaps of all calls of several launches."""
    CASE = "case"
    """The case's own streaming yardstick."""


class ClassScatter(msgspec.Struct, frozen=True, kw_only=True):
    """Components of the log time, relative to a reference, of one class of calls: scales of Student's t distribution; 0.005 is 0.5 %.

    Placements are a level of their own: each run's interval holds its own.
    """

    reference: Reference
    several_launches: bool
    low_us: float
    high_us: float
    """The class holds low <= time < high, in microseconds; infinite for the longest."""
    process: float | None
    """Between processes of one board; None where no two runs are of one board."""
    board: float | None
    """Between boards; None where all runs are of one board.  Without `process`, of a board and a process together."""
    placement: float
    """Typical standard error of a time that one process measured, from its placements."""
    same_board: int
    """Comparisons of equal code, two runs of one board."""
    other_board: int


class RunScatter(msgspec.Struct, frozen=True, kw_only=True):
    """The scatter between stored runs of one device model."""

    version: int
    device_name: str
    created: str
    """Time of the newest run, UTC, ISO 8601."""
    timer: str
    cache: CacheState
    runs: int
    boards: int
    classes: tuple[ClassScatter, ...]
