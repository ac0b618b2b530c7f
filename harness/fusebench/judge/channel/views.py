"""Tensors as views of shared memory: how they are described in messages, and copies of them on a device."""

from __future__ import annotations

import torch

from .protocol import ArenaSpec, ProtocolError, TensorSpec
from .region import ALIGNMENT, Region

_LONGEST = 8
"""Most dimensions of a tensor that crosses the border."""


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
        # Zeros, so that whoever reads before `fill` reads valid positions.
        self.memory = torch.zeros(spec.nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        self.shift = (spec.misalignment - self.memory.data_ptr()) % ALIGNMENT
        self._bytes = self.memory[self.shift : self.shift + spec.nbytes]
        self.address = self.memory.untyped_storage().data_ptr()
        self._staged = self._shared.to(device) if device.type == "cuda" else self._shared
        self._result = self._bytes
        if device.type != "cuda":
            self.fill()

    def view(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor in the copy."""
        return view_of(spec, self.memory.untyped_storage(), shift=self.shift, nbytes=self.spec.nbytes, device=self.memory.device)

    def fill(self) -> None:
        """Write the call's values, on the current stream."""
        self._bytes.copy_(self._staged)

    def keep(self) -> None:
        """Remember what the call left, in the order of the current stream: work of another stream that was not joined may miss it."""
        self._result = self._bytes.clone()

    def hand_back(self) -> None:
        """Write every byte of the copy, guards included, into the shared memory."""
        self._shared.copy_(self._result)
