"""The last module that the server of forked processes imports: what all of them inherit."""

from __future__ import annotations

import errno
import gc
import socket
from multiprocessing import reduction

from fusebench.timing import preparation

RECEIVE = reduction.recvfds


def receive(connection: socket.socket, most: int) -> list[int]:
    """Python's server ignores an aborted connection, but not one that ends before it has asked, as that of a killed process does."""
    try:
        return list(RECEIVE(connection, most))
    except EOFError as error:
        raise ConnectionAbortedError(errno.ECONNABORTED, "the process that connected has ended") from error


reduction.recvfds = receive

# A CPU's calls are cold up to 256 MB; to read these before every call took a fifth of forked processes' time.  No test holds such times.
preparation.CPU_EVICTION_LIMIT = 2**20

# Torch's objects stay: a session of pytest walks all of them five times when it ends.
gc.collect()
gc.freeze()
