"""A console whose reader may leave."""

from __future__ import annotations

import errno
import os

from rich.console import Console


class PipedConsole(Console):
    """Rich's own ends the process with exit code 1, which says regression, when nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, as writing without rich does (`ending.exit_code_of` gives it an exit code)."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
