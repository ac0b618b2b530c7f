"""The process that loads kernel files, seen from the one that asks it: started on demand, watched, and ended with all that it started."""

from __future__ import annotations

import multiprocessing
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import msgspec

from ...errors import FusebenchError
from ...schema import ExitCode
from ...shared_text import SharedText
from .child import NAME_BYTES, loader_main
from .messages import Answer, LoaderSetup, Question, Reply
from .watching import IMPORTING

START_S = 300.0
"""Time that the process gets to start and to import torch, which takes minutes from a cold network disk."""
SILENCE_S = 120.0
"""Time that the code of one kernel file gets. Files import other libraries, some of which take half a minute."""
STOP_S = 5.0
LINE_S = 1.0
"""Time for the thread that reads the line to see its end, which it does at once when the process is gone."""
POLL_S = 0.05
DRAIN_S = 0.2
"""Time to read what was printed before a reply."""
MOST_REPLY_BYTES = 256 * 2**20
"""A reply describes every kernel or one case: 100 kB for a hundred kernels."""
MOST_OUTPUT_BYTES = 16 * 2**10
"""What kernel files print beyond this is dropped."""


class LoaderLostError(FusebenchError):
    """The process that loads kernel files ended, and no file is known to be the cause."""

    exit_code = ExitCode.KERNEL_FAILED


class FileEndedLoader(Exception):  # noqa: N818 - an event, which the one who asked deals with
    """A kernel file ended the process, or never returned."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file, self.reason = file, reason


class LoaderProcess:
    """One process; when it is lost, it is not replaced."""

    def __init__(self, setup: LoaderSetup, *, silence_s: float = SILENCE_S) -> None:
        """`silence_s`: seconds after which the code of one file counts as hung."""
        self._silence_s = silence_s
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        output, their_output = context.Pipe(duplex=False)
        self._doing = SharedText(NAME_BYTES)
        self._printed = _Printed(output)
        arguments = (theirs, their_output, self._doing, setup)
        self._process = context.Process(target=loader_main, args=arguments, name="fusebench-loader", daemon=True)
        try:
            with _interrupts_held_back():
                self._process.start()
        finally:
            self._doing.close()
        theirs.close()
        their_output.close()
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        receiver = threading.Thread(target=_receive, args=(self._connection, self._replies), daemon=True)
        receiver.start()
        # Before multiprocessing ends its processes, which it asks politely and then waits for.
        self._ended = Finalize(self, _end, (self._process, self._connection, receiver), exitpriority=100)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def ask(self, question: Question) -> Answer:
        """The answer to the question.

        Raises:
            FileEndedLoader: a kernel file ended the process or never returned; the process is gone.
            LoaderLostError: the process is gone, and no file is known to be the cause.
        """
        token = secrets.token_hex(16)
        try:
            with suppress(OSError):  # it is gone; that shows in its replies
                self._connection.send((token, question))
            return self._answer(token)
        except BaseException:
            self.stop()
            raise
        finally:
            self._printed.show()

    def _answer(self, token: str) -> Answer:
        doing, since = self._doing.value, time.monotonic()
        while True:
            try:
                message = self._replies.get(timeout=POLL_S)
            except queue.Empty:
                now = self._doing.value
                if now != doing:
                    doing, since = now, time.monotonic()
                elif time.monotonic() - since > (self._silence_s if doing else START_S):
                    raise self._lost(f"showed no sign of life for {self._silence_s if doing else START_S:g} s", hung=True) from None
                continue
            if message is None:
                self._process.join(STOP_S)
                raise self._lost(_how(self._process.exitcode))
            try:
                reply = msgspec.msgpack.decode(message, type=Reply)
            except msgspec.DecodeError as error:
                raise self._lost(f"sent no reply but {len(message)} bytes ({error})") from error
            if reply.token != token:
                raise self._lost("sent a reply to no question")
            return reply.answer

    def _lost(self, how: str, *, hung: bool = False) -> Exception:
        what, _, file = self._doing.value.decode("utf-8", "surrogateescape").partition(" ")
        if not file:
            return LoaderLostError(f"the process that loads kernel files {how}, while it executed no file; run the command again")
        if hung:
            return FileEndedLoader(file, f"{'its import' if what == IMPORTING else 'a question to it about a case'} {how}")
        return FileEndedLoader(
            file, f"{'its import' if what == IMPORTING else 'a question to it about a case'} ended the process: it {how}"
        )

    def stop(self) -> None:
        """End the process and all that it started."""
        self._ended()
        self._printed.show()


def _how(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    return f"died of signal {signal.Signals(-code).name}" if code < 0 else f"left with exit status {code}"


def _receive(connection: Connection, replies: queue.SimpleQueue[bytes | None]) -> None:
    """Put whole replies into the queue, and None at their end: a reply that is cut off keeps only this thread waiting."""
    with suppress(EOFError, OSError, ValueError):
        while True:
            replies.put(connection.recv_bytes(MOST_REPLY_BYTES))
    replies.put(None)


def _end(process: Any, connection: Connection, receiver: threading.Thread) -> None:
    with suppress(OSError, ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:  # not before it has its own group
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(STOP_S)
    # The thread that reads the line is over when nobody holds its other end.  Closed under it, the line's number may become that of another
    # file, from which the thread would go on reading; so where a process that a kernel file left behind holds that end, it stays open.
    receiver.join(LINE_S)
    if not receiver.is_alive():
        with suppress(OSError):
            connection.close()


class _Printed:
    """What kernel files print: a bounded part of it goes to our stderr, never to our stdout."""

    def __init__(self, output: Connection) -> None:
        self._waiting, self._left, self._dropped = bytearray(), MOST_OUTPUT_BYTES, False
        self._over = False
        self._lock, self._output = threading.Lock(), output
        threading.Thread(target=self._read, args=(output,), daemon=True).start()

    def _read(self, output: Connection) -> None:
        while True:
            try:
                found = os.read(output.fileno(), 2**16)
            except OSError:
                break
            if not found:
                break
            with self._lock:
                kept = found[: max(0, self._left)]
                self._left -= len(kept)
                self._waiting += kept
                self._dropped = self._dropped or len(kept) < len(found)
        self._over = True

    def _output_waits(self) -> bool:
        with suppress(OSError, ValueError):
            return self._output.poll(0) and not self._over
        return False

    def show(self) -> None:
        """Write to stderr what has come."""
        until = time.monotonic() + DRAIN_S
        while time.monotonic() < until and self._output_waits():
            time.sleep(0.001)
        with self._lock:
            text = self._waiting.decode(errors="replace")
            self._waiting.clear()
            if self._dropped and self._left == 0:
                text += f"\n(kernel files print more than {MOST_OUTPUT_BYTES // 1024} kB while they are loaded; the rest is dropped)\n"
                self._left, self._dropped = -1, False
        shown = "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)
        if shown:
            with suppress(OSError, ValueError):
                sys.stderr.write(shown)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C is held back from a child that is started meanwhile, until it is there to ignore it."""
    resource_tracker.ensure_running()  # multiprocessing starts it before the first child, and then lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
