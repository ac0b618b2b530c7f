"""Errors that a user can act on.

Each class names one cause and carries its exit code. The message says what was found, what was expected, where, and what to do next. Any
other exception is a fault of fusebench itself: exit code 70, with a traceback. One exception is a missing package, which the command line
turns into a usage error (`fusebench.faults`).
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from .schema import ExitCode


class FusebenchError(Exception):
    """Base of the errors that the command line prints without a traceback."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class RemediedError(FusebenchError):
    """An error with separate `cause` and `remedy`, for display in columns; its message holds both."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)  # both as arguments, so that the error can be copied
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}"


class UsageError(FusebenchError):
    """A command, option or configuration that cannot be carried out as written."""


class UnknownNameError(UsageError):
    """An unknown name; the message offers the nearest known one."""

    def __init__(self, what: str, name: str, known: Iterable[str], where: str = "") -> None:
        super().__init__(describe_unknown(what, name, known, where))


class SuiteError(UsageError):
    """A suite file that is refused: file, line and key path are in the message."""


class KernelDeclarationError(UsageError):
    """A kernel or op declared in a way that cannot work."""


class KernelArgumentError(FusebenchError, ValueError):
    """A kernel called with arguments it cannot take: names the argument, what came and what is accepted."""


class RegressionError(FusebenchError):
    """A request that would hide a regression."""

    exit_code = ExitCode.REGRESSION


class DeviceUnfitError(FusebenchError):
    """The device is missing, busy, locked, unreadable or throttling: measuring on it would not be honest."""

    exit_code = ExitCode.DEVICE_UNFIT


class TimerError(FusebenchError):
    """The timer could not attribute what it recorded (records missing, no kernel seen)."""

    exit_code = ExitCode.DEVICE_UNFIT


class NotColdError(TimerError):
    """The cache cannot be emptied before timed calls, so samples labelled cold would be warm."""


class NotCapturableError(FusebenchError, RuntimeError):
    """No CUDA graph can hold the call, so a timer that replays graphs cannot time it."""


class MeasuringProcessError(FusebenchError):
    """A process that measured a model died, or gave no answer."""

    exit_code = ExitCode.KERNEL_FAILED


class RunRecordError(UsageError):
    """A run folder that cannot be read: missing, truncated, or of another schema version."""


class AlteredRecordError(RunRecordError):
    """A record that does not fit its seal: somebody edited it, or a file is damaged or of another record."""


class RecordNotWrittenError(UsageError):
    """A record that cannot be written, because the disk is full or the folder takes no file; says what is kept, and where."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def describe_unknown(what: str, name: str, known: Iterable[str], where: str = "") -> str:
    """`where: unknown what 'name'; did you mean …? known: …`, with at most twelve known names."""
    names = sorted(known)
    suggestion = nearest(name, names)
    parts = [f"{where}: " if where else "", f"unknown {what} {name!r}"]
    if suggestion is not None:
        parts.append(f"; did you mean {suggestion!r}?")
    if names:
        shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
        parts.append(f" Known: {shown}." if suggestion is not None else f"; known: {shown}.")
    else:
        parts.append("; there are none.")
    return "".join(parts)


def describe_exception(error: Exception, roots: Sequence[Path]) -> str:
    """`Type: message`, cut to six lines, and the innermost line under `roots` (kernels folders) that raised it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = " | ".join(line.strip() for line in lines[:6]) + (" | …" if len(lines) > 6 else "")
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if any(Path(frame.filename).is_relative_to(root) for root in roots)
    ]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"
