"""The line between the runner and a worker process: tasks go out pickled, and nothing that comes back is unpickled.

A kernel shares its process with whoever answers for it. So an answer is data: MessagePack of the types of `protocol`, of bounded size,
with the token of the task that it answers. Anything else ends the worker.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from .protocol import Checked, CheckedAhead, Failure, Measured, Prepared, Progress, Task

MOST_BYTES = 256 * 2**20
"""Size of the largest answer.  The samples of a case of a nightly take some hundred kilobytes."""
CHUNK_BYTES = 2**16
_HEADER = struct.Struct("!i")
"""How `multiprocessing.connection` writes the length of a message."""

Message = Progress | Checked | CheckedAhead | Prepared | Measured | Failure


class GarbledReplyError(Exception):
    """A worker's process sent something other than an answer to its task."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message with the token of the task that it belongs to."""

    token: bytes
    message: Message


class WorkerEnd:
    """The worker's end of the line."""

    def __init__(self, connection: Connection, token: bytes) -> None:
        """`token`: of the messages before the first task."""
        self._connection, self._token = connection, token

    def recv(self) -> Task | None:
        """The next task; None to leave."""
        received = self._connection.recv()
        if received is None:
            return None
        task: Task
        self._token, task = received
        return task

    def send(self, message: Message) -> None:
        """Send a message about the current task."""
        self._connection.send_bytes(msgspec.msgpack.encode(Envelope(self._token, message), enc_hook=_plain))

    def close(self) -> None:
        self._connection.close()


class RunnerEnd:
    """The runner's end of the line."""

    def __init__(self, connection: Connection, token: bytes) -> None:
        self._connection, self._token = connection, token
        self._received = bytearray()

    def send(self, task: Task | None) -> None:
        """Send a task, under a new token; None asks the worker to leave."""
        if task is None:
            self._connection.send(None)
            return
        self._token = secrets.token_bytes(16)
        self._connection.send((self._token, task))

    def poll(self, timeout: float) -> bool:
        """Whether a whole message is there, within `timeout` seconds; half a message never blocks.

        Raises:
            EOFError: the worker has closed its end.
            GarbledReplyError: the message is too large.
        """
        until = time.monotonic() + timeout
        while not self._is_whole():
            if not self._connection.poll(max(0.0, until - time.monotonic())):
                return False
            chunk = os.read(self._connection.fileno(), CHUNK_BYTES)
            if not chunk:
                raise EOFError
            self._received += chunk
        return True

    def recv(self) -> Message:
        """The message that `poll` has announced.

        Raises:
            GarbledReplyError: it is no message, or does not belong to the current task.
        """
        length = self._length()
        assert length is not None, "poll announced a message"
        content = bytes(self._received[_HEADER.size : _HEADER.size + length])
        del self._received[: _HEADER.size + length]
        try:
            envelope = msgspec.msgpack.decode(content, type=Envelope)
        except (ValueError, RecursionError, OverflowError) as error:  # msgspec's and Unicode's errors are ValueErrors
            raise GarbledReplyError(f"{length} bytes that are no answer ({error})") from error
        if not secrets.compare_digest(envelope.token, self._token):
            raise GarbledReplyError("an answer to another task")
        return envelope.message

    def close(self) -> None:
        self._connection.close()

    def _is_whole(self) -> bool:
        length = self._length()
        return length is not None and len(self._received) >= _HEADER.size + length

    def _length(self) -> int | None:
        """Bytes of the next message; None before they are known."""
        if len(self._received) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._received)
        if not 0 <= length <= MOST_BYTES:
            raise GarbledReplyError("a message of no possible length")
        return int(length)


def line(connection: tuple[Connection, Connection]) -> tuple[RunnerEnd, WorkerEnd]:
    """Both ends of a line over a pipe."""
    token = secrets.token_bytes(16)
    ours, theirs = connection
    return RunnerEnd(ours, token), WorkerEnd(theirs, token)


def _plain(value: Any) -> Any:
    """A scalar of NumPy or torch as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be sent")
