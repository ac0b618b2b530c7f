"""A short text in memory that processes share, which outlives whichever of them writes it.

`multiprocessing.RawArray` keeps account of its memory in Python.  Where the garbage collector frees such an array near the limit of
recursion, that account is left half changed, and every later array of the process fails with a KeyError.  Here the system keeps the memory,
and no Python code runs when it is freed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from typing import Any


class SharedText:
    """A text of bytes without NUL.  Pickled among the arguments of a process that is being started, it is the same memory there."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: room for the text and one byte more."""
        self._fd = _memory_file()
        try:
            os.ftruncate(self._fd, nbytes)
            self._memory = mmap.mmap(self._fd, nbytes)
        except BaseException:
            self.close()
            raise

    @property
    def value(self) -> bytes:
        """The text; empty until one is written."""
        return self._memory[: len(self._memory)].partition(b"\0")[0]

    @value.setter
    def value(self, text: bytes) -> None:
        self._memory[: len(text) + 1] = text + b"\0"

    def close(self) -> None:
        """Give the descriptor back, once every process that shares the text was started; the text stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._fd), len(self._memory))


def _received(descriptor: Any, nbytes: int) -> SharedText:
    """The text in the process that was started."""
    text = SharedText.__new__(SharedText)
    text._fd = descriptor.detach()
    text._memory = mmap.mmap(text._fd, nbytes)
    text.close()
    return text


def _memory_file() -> int:
    """Descriptor of a file without a name: in memory, on Linux."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fusebench", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
