"""How a confined process ended, and what it left."""

from __future__ import annotations

import signal
from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """Why a confined process ended."""

    EXITED = "exited"
    SIGNAL = "signal"
    HUNG = "hung"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    DISK_FULL = "disk_full"
    FLOODED = "flooded"
    STOPPED = "stopped"
    """The trusted side killed it: the work was done, or someone asked."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a confined process ended."""

    cause: Cause
    exit_code: int | None = None
    """None unless it exited by itself."""
    signal: str | None = None
    """Name of the signal that ended it, such as `SIGSEGV`; None if it exited, or if the trusted side killed it."""
    output: str = ""
    """Beginning and end of stdout and stderr, in order of arrival; undecodable bytes replaced. Written by the candidate: data."""
    peak_bytes: int = 0
    """Most memory seen resident in the whole tree."""
    survivors: tuple[int, ...] = ()
    """Processes that could not be killed; waiting in the kernel, for instance."""

    def describe(self) -> str:
        """One sentence without the output."""
        said = {
            Cause.HUNG: "did not end in the time allowed",
            Cause.OUT_OF_MEMORY: f"took too much memory ({self.peak_bytes / 2**30:.1f} GiB)",
            Cause.TOO_MANY_PROCESSES: "started too many processes",
            Cause.DISK_FULL: "wrote too much into its scratch folder",
            Cause.FLOODED: "printed too much",
            Cause.STOPPED: "was stopped",
            Cause.SIGNAL: f"was killed by {self.signal}",
        }
        return said.get(self.cause, f"exited with code {self.exit_code}")


def signal_name(number: int) -> str:
    """Such as `SIGSEGV`; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
