"""Exit status of a command that ended by an unexpected exception: a fault of fusebench, a missing package, or a closed pipe."""

from __future__ import annotations

import os
import traceback
from contextlib import suppress

import typer

from ... import __version__
from ...faults import known_cause, unread
from ...schema import ExitCode

EXIT_UNREAD = 141
"""What a shell reports for a process that SIGPIPE ended: 128 + 13."""


def exit_code_of(error: BaseException) -> int:
    """Report the unexpected `error` on stderr, and return its exit code."""
    if isinstance(error, BrokenPipeError) and _nobody_reads():
        return EXIT_UNREAD
    if (known := known_cause(error)) is not None:
        with suppress(OSError):
            typer.echo(f"error: {known}", err=True)
        return known.exit_code
    with suppress(OSError):  # a stderr that is gone must not change the exit code
        traceback.print_exception(error)
        typer.echo(
            f"error: this is a fault of fusebench {__version__} and no verdict on any kernel: report it with the traceback above and the "
            "command line. What this command had measured is kept where a line above says so; what was stored before is whole.",
            err=True,
        )
    return ExitCode.FAULT


def _nobody_reads() -> bool:
    """Whether the reader of stdout or stderr closed the pipe (`fusebench … | head`); later output is then dropped."""
    left = unread()
    for descriptor in left:
        # The interpreter flushes once more as it exits, and would replace our exit code by its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return bool(left)
