"""Pages that a call may not write, on a CPU: a kernel that uses a read-only input as its workspace is caught even if it restores it.

The pages are made read-only for the length of a call.  A write to one is a fault, whose handler notes the address and makes the buffer
writable again, so that the call goes on and the process lives.  A GPU has no such fault: there a buffer that was restored before the call
ended is not noticed, and only what stays changed is.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_ADDRESS_OFFSET = 16
"""Place of `si_addr` in Linux's `siginfo_t` on 64-bit machines."""
_SA_SIGINFO, _SA_NODEFER = 4, 0x40000000
_READ, _READ_WRITE = 1, 3


class _Action(ctypes.Structure):
    """glibc's `struct sigaction`, equal on x86-64 and aarch64."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p))


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def protects() -> bool:
    """Whether this system can protect pages: Linux with 64-bit pointers."""
    return sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8


@contextmanager
def write_protected(ranges: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    """Within the block no byte of `ranges` can be written unnoticed.

    Args:
        ranges: first and last-but-one address by name.  The pages around them become read-only too, so nothing else may lie there.

    Yields:
        The address of the first write, by name; filled while the block runs.  Empty on systems that cannot protect pages.
    """
    written: dict[str, int] = {}
    if not protects() or not ranges:
        yield written
        return
    libc = ctypes.CDLL(None, use_errno=True)
    pages = {name: _pages(first, end) for name, (first, end) in ranges.items() if end > first}
    previous = _Action()

    def allow(name: str, how: int) -> bool:
        first, end = pages[name]
        return bool(libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(end - first), how) == 0)

    def on_fault(number: int, info: int, context: int) -> None:
        address = ctypes.c_uint64.from_address(info + _ADDRESS_OFFSET).value
        for name, (first, end) in pages.items():
            if first <= address < end and name not in written:
                written[name] = address
                allow(name, _READ_WRITE)
                return
        libc.sigaction(signal.SIGSEGV, ctypes.byref(previous), None)  # another fault: it happens again, and ends as it always did

    handler = _Handler(on_fault)
    own = _Action(ctypes.cast(handler, ctypes.c_void_p).value, flags=_SA_SIGINFO | _SA_NODEFER)
    libc.sigaction(signal.SIGSEGV, ctypes.byref(own), ctypes.byref(previous))
    try:
        for name in pages:
            allow(name, _READ)
        yield written
    finally:
        for name in pages:
            allow(name, _READ_WRITE)
        libc.sigaction(signal.SIGSEGV, ctypes.byref(previous), None)


def _pages(first: int, end: int) -> tuple[int, int]:
    size = mmap.PAGESIZE
    return first // size * size, -(-end // size) * size
