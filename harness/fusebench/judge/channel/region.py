"""Shared memory between the judge and one process that calls kernels.

The judge makes the memory, and alone decides how large it is: it is sealed against shrinking, because a mapping of a file that shrank
would end the judge with a bus error.  Importing this module imports no torch: processes are started before the judge's own import of it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import warnings
from typing import TYPE_CHECKING

from .protocol import ProtocolError

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256
"""Of every arena and output in the region, in bytes."""
PAGE = mmap.PAGESIZE


class Region:
    """A growing piece of shared memory, mapped here."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """`fd`: a memory file of at least `nbytes` bytes, which the region then owns."""
        self.fd = fd
        self.nbytes = 0
        self._memory: torch.Tensor | None = None
        self._map(nbytes)

    @classmethod
    def make(cls, nbytes: int = mmap.PAGESIZE) -> Region:
        """A new region; its `fd` is for the other process."""
        fd = os.memfd_create("fusebench", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        # No further seal either: one against growth would stop the judge.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(fd, nbytes)

    def reserve(self, nbytes: int) -> None:
        """Make the region at least `nbytes` long (judge's side)."""
        if nbytes > self.nbytes:
            nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.fstat(self.fd).st_size < nbytes:
                os.ftruncate(self.fd, nbytes)
            self._map(nbytes)

    def follow(self, nbytes: int) -> None:
        """Map what the judge has made of it (the other process)."""
        if nbytes > self.nbytes:
            self._map(nbytes)

    def bytes_at(self, start: int, nbytes: int) -> torch.Tensor:
        """`[nbytes]` uint8 in the shared memory itself."""
        if start < 0 or nbytes < 0 or start + nbytes > self.nbytes:
            raise ProtocolError(f"bytes {start} to {start + nbytes} lie outside of the {self.nbytes} bytes that are shared")
        if self._memory is None:
            import torch

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._memory = torch.frombuffer(self.mapped, dtype=torch.uint8)
        return self._memory[start : start + nbytes]

    def _map(self, nbytes: int) -> None:
        self.mapped = mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.nbytes = nbytes
        self._memory = None

    def close(self) -> None:
        """Give the file back; tensors of it stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
