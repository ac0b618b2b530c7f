"""Runs many items in a few forked children, so that an item that crashes or hangs stops no other.

A child starts with every module that is loaded here, which saves seconds for torch, Triton and a folder of kernels.  It works on item after
item, because a compiler's first use takes longer than ten kernels.  A lost child is replaced.  Only a process without other threads may
fork safely: a worker that computes nothing itself has none.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import msgspec

from ..errors import FusebenchError

ItemT = TypeVar("ItemT")
_NUMBER = struct.Struct("<Q")
"""Index of an item on its way to a child, length of a reply on its way back."""
_POLL_S = 0.2


@dataclass(frozen=True)
class Failed:
    """In place of a result: the reason for its absence."""

    reason: str


@dataclass
class _Child:
    pid: int
    requests: int
    replies: int
    index: int = -1
    """Index of its current item."""
    deadline: float = 0.0
    received: bytearray = field(default_factory=bytearray)

    def give(self, index: int, timeout_s: float) -> None:
        self.index, self.deadline = index, time.monotonic() + timeout_s
        os.write(self.requests, _NUMBER.pack(index))

    def reply(self) -> bytes | None:
        """The reply, once it is complete."""
        if len(self.received) < _NUMBER.size:
            return None
        (length,) = _NUMBER.unpack_from(self.received)
        if len(self.received) < _NUMBER.size + length:
            return None
        reply = bytes(self.received[_NUMBER.size :])
        self.received.clear()
        return reply


def run_forked(
    function: Callable[[ItemT], Any], items: Sequence[ItemT], result: type[Any], *, jobs: int, timeout_s: float
) -> Iterator[tuple[int, Any]]:
    """Yield (index, result or Failed) of each item in order of completion, with `jobs` at a time.

    Args:
        function: runs in a child and returns a `result` that msgspec can encode.  An exception becomes a Failed.
        timeout_s: seconds per item until its child is killed.
    """
    waiting = list(range(len(items)))[::-1]
    with selectors.DefaultSelector() as selector:
        children = _Children(function, items, selector, timeout_s)
        try:
            while waiting and len(children.by_descriptor) < jobs:
                children.add(waiting.pop())
            while children.by_descriptor:
                for key, _ in selector.select(timeout=_POLL_S):
                    child = children.by_descriptor[key.fd]
                    index = child.index
                    if chunk := os.read(child.replies, 1 << 20):
                        child.received += chunk
                        if (reply := child.reply()) is None:
                            continue
                        outcome = _decode(reply, result)
                        if waiting:
                            child.give(waiting.pop(), timeout_s)
                        else:
                            children.remove(child)
                    else:
                        outcome = Failed(children.remove(child))
                        if waiting:
                            children.add(waiting.pop())
                    yield index, outcome
                children.kill_late()
        finally:
            children.kill_all()


class _Children:
    """The living children, by the descriptor of their replies."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], selector: selectors.BaseSelector, timeout_s: float) -> None:
        self._function, self._items, self._selector, self._timeout_s = function, items, selector, timeout_s
        self.by_descriptor: dict[int, _Child] = {}

    def add(self, index: int) -> None:
        """Start a child on item `index`."""
        (requests_in, requests_out), (replies_in, replies_out) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            others = [end for child in self.by_descriptor.values() for end in (child.requests, child.replies)]
            for inherited in (requests_out, replies_in, *others):  # a pipe ends when its last holder closes it
                os.close(inherited)
            _serve(self._function, self._items, requests_in, replies_out)
        os.close(requests_in)
        os.close(replies_out)
        child = _Child(pid, requests_out, replies_in)
        child.give(index, self._timeout_s)
        self.by_descriptor[replies_in] = child
        self._selector.register(replies_in, selectors.EVENT_READ)

    def remove(self, child: _Child) -> str:
        """Forget a child, which exits when its requests end; the sentence says how it ended."""
        late = time.monotonic() > child.deadline
        self._selector.unregister(child.replies)
        del self.by_descriptor[child.replies]
        os.close(child.requests)
        os.close(child.replies)
        _, status = os.waitpid(child.pid, 0)
        if late:
            return f"it took longer than {self._timeout_s:g} s and was stopped"
        if os.WIFSIGNALED(status):
            return f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} and without a result"

    def kill_late(self) -> None:
        for child in self.by_descriptor.values():
            if time.monotonic() > child.deadline:
                os.kill(child.pid, signal.SIGKILL)  # the end of its pipe tells the loop

    def kill_all(self) -> None:
        for child in list(self.by_descriptor.values()):
            os.kill(child.pid, signal.SIGKILL)
            self.remove(child)


def _serve(function: Callable[[ItemT], Any], items: Sequence[ItemT], requests: int, replies: int) -> NoReturn:
    """In the child: reply to each request with `R` and the result, or `F` and the reason; exit without the parent's exit handlers."""
    code = 0
    try:
        with os.fdopen(requests, "rb") as stream, os.fdopen(replies, "wb") as answers:
            while request := stream.read(_NUMBER.size):
                content = _attempt(function, items[_NUMBER.unpack(request)[0]])
                answers.write(_NUMBER.pack(len(content)) + content)
                answers.flush()
    except BaseException:  # noqa: BLE001 - the parent is gone, or stopped this child
        code = 1
    os._exit(code)


def _attempt(function: Callable[[ItemT], Any], item: ItemT) -> bytes:
    try:
        return b"R" + msgspec.msgpack.encode(function(item))
    except FusebenchError as error:
        return b"F" + str(error).encode()
    except BaseException as error:  # noqa: BLE001 - any error concerns this item alone
        return b"F" + f"{type(error).__name__}: {error}".encode()


def _decode(reply: bytes, result: type[Any]) -> Any:
    content = reply[1:]
    return msgspec.msgpack.decode(content, type=result) if reply[:1] == b"R" else Failed(content.decode("utf-8", "replace"))
