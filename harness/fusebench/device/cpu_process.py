"""A process that measures on a CPU: its threads and its memory, the same in the first process of a run and in every fresh one.

* Threads.  A parallel region ends when its last thread does.  Where another program holds one of the cores, the other threads wait for it,
  and OpenMP's threads wait by spinning.  On two cores beside seven busy processes, a split chain that needs 4 ms with one thread took 70 to
  310 ms with two (medians of a process).  So one thread computes.
* Memory.  glibc returns large freed blocks to the system, and the next call pays for their pages again.  The size that counts as large
  grows with the blocks that a process has freed before, as in accuracy checks.  A split chain of 6 MB took 68 ms in the process that had
  checked it, and up to 106 ms in fresh ones, with 1.9 million page faults.  Fixed sizes end that difference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = 1

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""
MMAP_THRESHOLD = 32 * 2**20
"""Bytes from which a block is mapped by itself: the largest value that glibc accepts, and the one to which it would grow."""
TRIM_THRESHOLD = 2**30
"""Free bytes at the heap's end that a process keeps: more than the temporaries of a call on a CPU."""


def expected_settings() -> str:
    """The settings of every process that measures on a CPU, in words."""
    return _in_words(THREADS, held=hasattr(ctypes.CDLL(None), "mallopt"))


def settings(*, held: bool) -> str:
    """The settings of this process as they are now; `held`: what `hold_memory` returned."""
    import torch

    return _in_words(torch.get_num_threads(), held=held)


def hold_memory() -> bool:
    """Fix the sizes from which freed memory goes back to the system; False where the C library has no such sizes."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD) and library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD))


@contextmanager
def measuring_on_cpu() -> Iterator[None]:
    """The settings for the block, in a process that has other work as well; the memory's stay."""
    import torch

    hold_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_words(threads: int, *, held: bool) -> str:
    memory = f"glibc keeps freed blocks below {MMAP_THRESHOLD >> 20} MiB" if held else "the C library's own limits of memory"
    return f"{threads} thread{'' if threads == 1 else 's'}, {memory}"
