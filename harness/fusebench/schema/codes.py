"""Exit codes and their precedence."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the process.  When several apply, the first of `EXIT_PRECEDENCE` wins."""

    PASS = 0
    REGRESSION = 1
    USAGE = 2
    DEVICE_UNFIT = 3
    UNDECIDED = 4
    KERNEL_FAILED = 5
    FAULT = 70
    """fusebench itself failed, which is no verdict: EX_SOFTWARE of sysexits.h."""


EXIT_PRECEDENCE = (
    ExitCode.FAULT,
    ExitCode.USAGE,
    ExitCode.DEVICE_UNFIT,
    ExitCode.KERNEL_FAILED,
    ExitCode.REGRESSION,
    ExitCode.UNDECIDED,
    ExitCode.PASS,
)


def worst_exit_code(codes: list[ExitCode]) -> ExitCode:
    """The code that a caller must see when several apply; PASS for an empty list."""
    return next((code for code in EXIT_PRECEDENCE if code in codes), ExitCode.PASS)
