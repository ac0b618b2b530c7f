"""A rich console for pipes: a reader that closes the pipe raises an error instead of ending the process."""

from __future__ import annotations

import errno
import os

from rich.console import Console


class PipedConsole(Console):
    """Rich's console exits with 1 on a closed pipe; here 1 means a regression."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, as writing without rich does (the entry point gives it an exit code)."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
