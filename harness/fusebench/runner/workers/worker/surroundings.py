"""The surroundings of a worker's process: its output, its session, and its end when the runner ends.

Called before anything else in the process. Linux has all of it; elsewhere a worker does without the parts that fail.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

LIKELIEST_VICTIM = "1000"
"""The value of `oom_score_adj` that makes the system end this process first where memory runs out, and not the runner."""


def settle_in(output: Connection | None, lifeline: Connection | None) -> None:
    """Send all output to `output`, lead a session of our own, and die when the other end of `lifeline` closes.

    Args:
        output: where everything that kernels print goes; to stderr where None, because stdout holds the runner's JSON document.
        lifeline: end of a pipe whose other end only the runner holds.
    """
    if output is not None:
        os.dup2(output.fileno(), 2)
    os.dup2(2, 1)
    # Ctrl-C reaches every process of the terminal; what becomes of a worker is the runner's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the runner holds it back until here
    if lifeline is None:
        return
    with suppress(OSError):  # so that whatever a kernel starts can be ended with the worker
        os.setsid()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(LIKELIEST_VICTIM)
    with suppress(OSError, AttributeError):
        _die_with(lifeline.fileno())
    if lifeline.poll(0):  # the runner ended before that
        os._exit(1)


def _die_with(descriptor: int) -> None:
    """Have the system kill this process when the other end of the pipe closes, whatever a kernel is doing then."""
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
