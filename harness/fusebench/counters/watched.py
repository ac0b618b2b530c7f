"""A program run to its end and watched: killed with all that it started when it falls silent, or when the caller is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

POLL_S = 0.1


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    code: int | None
    """Exit code, negative for a signal; None where it was killed for its silence."""
    said: str
    """Standard output and standard error, in the order in which they came."""


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    silence_s: float,
    signs_of_life: Callable[[], object] = lambda: None,
) -> Ended:
    """Run `command` and wait for its end.

    Args:
        silence_s: seconds without new output and without a change of `signs_of_life()` after which it is killed.
        signs_of_life: called often; a value that differs from the last is a sign.
    """
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C reaches the caller alone, and the whole group can be killed.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )
        try:
            ended = _wait(process, lambda: (os.fstat(output.fileno()).st_size, signs_of_life()), silence_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has left behind, or all of it
            process.wait()
        output.seek(0)
        return Ended(code=process.returncode if ended else None, said=output.read().decode("utf-8", "replace"))


def _wait(process: subprocess.Popen[bytes], signs: Callable[[], object], silence_s: float) -> bool:
    """Whether the process ended by itself."""
    last, heard = signs(), time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return True
        now = signs()
        if now != last:
            last, heard = now, time.monotonic()
        elif time.monotonic() - heard > silence_s:
            return False
