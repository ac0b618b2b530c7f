"""Shared memory between the judge and one process that calls kernels, and tensors as views of it.

The judge makes the memory, and alone decides how large it is: it is sealed against shrinking, because a mapping of a file that shrank
would end the judge with a bus error.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import warnings

import torch

from .protocol import ArenaSpec, ProtocolError, TensorSpec

ALIGNMENT = 256
"""Of every arena and output in the region, in bytes."""
PAGE = mmap.PAGESIZE
_LONGEST = 8
"""Most dimensions of a tensor that crosses the border."""


class Region:
    """A growing piece of shared memory, mapped here."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """`fd`: a memory file of at least `nbytes` bytes, which the region then owns."""
        self.fd = fd
        self.nbytes = 0
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
        """Map what the judge has made of it (the other side)."""
        if nbytes > self.nbytes:
            self._map(nbytes)

    def bytes_at(self, start: int, nbytes: int) -> torch.Tensor:
        """`[nbytes]` uint8 in the shared memory itself."""
        if start < 0 or nbytes < 0 or start + nbytes > self.nbytes:
            raise ProtocolError(f"bytes {start} to {start + nbytes} lie outside of the {self.nbytes} bytes that are shared")
        return self._memory[start : start + nbytes]

    def _map(self, nbytes: int) -> None:
        self.mapped = mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.nbytes = nbytes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._memory = torch.frombuffer(self.mapped, dtype=torch.uint8)

    def close(self) -> None:
        """Give the file back; tensors of it stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def spec_of(tensor: torch.Tensor, arena: int, *, shift: int = 0) -> TensorSpec:
    """`tensor` as a view of arena number `arena`, which starts `shift` bytes into its storage."""
    offset = int(tensor.storage_offset()) - shift // tensor.element_size()
    return TensorSpec(arena, str(tensor.dtype).removeprefix("torch."), offset, tuple(tensor.shape), tuple(tensor.stride()))


def dtype_of(name: str) -> torch.dtype:
    """The dtype called `name`.

    Raises:
        ProtocolError: there is none, or it is quantised or without arithmetic, as no op's output is.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or name.startswith(("q", "bits")):
        raise ProtocolError(f"no dtype: {name[:40]!r}")
    return found


def view_of(spec: TensorSpec, storage: torch.UntypedStorage, *, shift: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """The tensor of `spec` in `storage`, whose arena of `nbytes` bytes starts at byte `shift`.

    Raises:
        ProtocolError: it would reach outside of the arena.
    """
    dtype = dtype_of(spec.dtype)
    size, stride = spec.size, spec.stride
    if len(size) > _LONGEST or len(stride) != len(size) or spec.offset < 0 or any(n < 0 for n in (*size, *stride)):
        raise ProtocolError(f"no tensor: size {size}, stride {stride}, offset {spec.offset}")
    empty = any(n == 0 for n in size)
    last = spec.offset + (0 if empty else sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1)
    if last * dtype.itemsize > nbytes:
        raise ProtocolError(f"a tensor of size {size}, stride {stride} and offset {spec.offset} reaches outside of its {nbytes} bytes")
    view = torch.empty(0, dtype=dtype, device=device)
    return view.set_(storage, shift // dtype.itemsize + spec.offset, size, stride)


class Arena:
    """A private copy of one arena on a device, at an address of the same misalignment as the judge's."""

    def __init__(self, spec: ArenaSpec, region: Region, device: torch.device) -> None:
        self.spec = spec
        self._shared = region.bytes_at(spec.start, spec.nbytes)
        self.memory = torch.empty(spec.nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        self.shift = (spec.misalignment - self.memory.data_ptr()) % ALIGNMENT
        self._bytes = self.memory[self.shift : self.shift + spec.nbytes]
        self.address = self.memory.untyped_storage().data_ptr()
        self._bytes.copy_(self._shared)

    def view(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor in the copy."""
        return view_of(spec, self.memory.untyped_storage(), shift=self.shift, nbytes=self.spec.nbytes, device=self.memory.device)

    def hand_back(self) -> None:
        """Write every byte of the copy, guards included, into the shared memory."""
        self._shared.copy_(self._bytes)
