"""Memory guards: every input buffer lies between guard bytes, and every read-only byte is compared afterwards.

One mechanism finds four kinds of writes: before or after a buffer, into a read-only input, into the part of a packed buffer that no mutable
argument views, and between the elements of a strided view.  Each buffer has an arena of its own, because `torch.compile` treats tensors of
one storage as possibly aliased and would then run other code than models do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .write_protection import write_protected

ALIGNMENT = 256
"""Alignment of a buffer's address in bytes: cudaMalloc's minimum (CUDA C++ Programming Guide, "Device Memory Accesses"), which models
therefore get.  A smaller one would refuse 16-byte loads and TMA descriptors that are right in use, and Triton would compile another variant
than models run."""

VIEW_ALIGNMENT = 16
"""Alignment of a buffer that is a part of a larger one, as a caller's may be: rows of all ops are multiples of it.  It is what a thread's
widest access and a TMA descriptor ask for, and what Triton and torch.compile tell apart, so that they take the code that models run."""

GUARD_BYTES = 64 * 1024
"""Bytes of guard on each side.  They cover a whole row written past the end, not just an element: the widest row of the ops is 8192 float32
channels (32 KiB)."""

MOST_LEAD = 64
"""Alignment units of random lead before each buffer, so that no two calls see the same relative addresses (16 KiB)."""

_GUARD_WORD = 0x7FA5
"""Every 16-bit word of a guard.  It is NaN as bfloat16, as float16 and, repeated, as float32, so an out-of-bounds read that reaches a
result shows too.  As bfloat16 and float32 it is a signalling NaN: arithmetic changes its bits, so writing the outcome back in place is
visible."""


@dataclass
class _Arena:
    name: str
    memory: torch.Tensor
    """uint8, a multiple of `ALIGNMENT` bytes, a storage of its own."""
    start: int
    """Offset of the buffer in bytes."""
    nbytes: int
    buffer: torch.Tensor
    snapshot: torch.Tensor | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() == self.memory.untyped_storage().data_ptr()


class Placed:
    """Buffers copied between guards.  `buffers` are contiguous tensors of the original shapes and dtypes, by the same names."""

    def __init__(self, arenas: Sequence[_Arena]) -> None:
        self._arenas = arenas
        self.buffers: dict[str, torch.Tensor] = {arena.name: arena.buffer for arena in arenas}

    def owner(self, tensor: torch.Tensor) -> str | None:
        """Name of the buffer whose memory `tensor` uses, or None."""
        return next((arena.name for arena in self._arenas if tensor.numel() and arena.holds(tensor)), None)

    def unguarded(self, arguments: Mapping[str, Any]) -> list[str]:
        """Names of tensor arguments that are not views of the placed buffers, and so have no guards."""
        return [
            name for name, value in arguments.items() if isinstance(value, torch.Tensor) and value.numel() and self.owner(value) is None
        ]

    def refill(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy other values of the same shapes into the buffers, at the same addresses."""
        for name, buffer in self.buffers.items():
            buffer.copy_(values[name].detach())

    @contextmanager
    def read_only(self, mutable: Sequence[torch.Tensor] = ()) -> Iterator[list[str]]:
        """Within the block, on a CPU, every write to a buffer that no tensor of `mutable` views is noticed, restored or not.

        Yields a list that holds, after the block, one sentence per buffer that was written.
        """
        arenas = {arena.name: arena for arena in self._arenas if not any(arena.holds(tensor) for tensor in mutable)}
        there = {name: arena.memory.data_ptr() + arena.start for name, arena in arenas.items() if arena.memory.device.type == "cpu"}
        found: list[str] = []
        with write_protected({name: (first, first + arenas[name].nbytes) for name, first in there.items()}) as written:
            yield found
        for name, address in written.items():
            found.append(f"buffer {name!r}: written during the call, first at byte {address - there[name]}: inputs are no workspace")

    def snapshot(self) -> None:
        """Remember the present value of every byte."""
        for arena in self._arenas:
            # Eight bytes at a time: small arenas then stay below the size at which torch wakes its thread pool.
            arena.snapshot = arena.memory.view(torch.int64).clone().view(torch.uint8)

    def violations(self, mutable: Sequence[torch.Tensor] = ()) -> list[str]:
        """The changes since `snapshot` outside the elements of `mutable`, one sentence per place; empty without any.

        Args:
            mutable: strided views into the placed buffers that the call may change.  The snapshot takes over their present values.

        Raises:
            ValueError: no snapshot was taken, or a tensor of `mutable` is not a view of a placed buffer.
        """
        for tensor in mutable:
            if tensor.numel() and self.owner(tensor) is None:
                raise ValueError(f"a mutable tensor of shape {tuple(tensor.shape)} is not a view of a placed buffer")
        pairs: list[tuple[_Arena, torch.Tensor]] = []
        for arena in self._arenas:
            if arena.snapshot is None:
                raise ValueError("violations() compares with a snapshot; call snapshot() before the kernel runs")
            for tensor in mutable:
                if arena.holds(tensor):
                    _same_view(tensor, arena.snapshot).copy_(tensor)
            pairs.append((arena, arena.snapshot))
        if _all_equal([(arena.memory, snapshot) for arena, snapshot in pairs]):
            return []
        return [text for arena, snapshot in pairs for text in _describe_changes(arena, arena.memory != snapshot)]


def _all_equal(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether the memory (uint8, a multiple of eight bytes) of each pair is the same."""
    # As integers: NaN must equal itself, and eight bytes at a time is faster. One wait for the device, not one for each pair.
    changed = [(one.view(torch.int64) != other.view(torch.int64)).any() for one, other in pairs]
    return not changed or not bool(torch.stack(changed).any())


def _same_view(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The elements of `memory` (uint8, one storage) at the places of `tensor` in its own storage."""
    view = torch.empty(0, dtype=tensor.dtype, device=memory.device)
    return view.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _describe_changes(arena: _Arena, changed: torch.Tensor) -> list[str]:
    end = arena.start + arena.nbytes
    found = []
    parts = (
        (f"guard before buffer {arena.name!r}", changed[: arena.start], arena.start),
        (f"buffer {arena.name!r}", changed[arena.start : end], 0),
        (f"guard after buffer {arena.name!r}", changed[end:], 0),
    )
    for place, part, origin in parts:
        where = part.nonzero().flatten()
        if where.numel() == 0:
            continue
        first, last = int(where[0]), int(where[-1])
        if place.startswith("guard before"):
            text = f"nearest {_bytes(origin - last)} before the buffer's start"
        elif place.startswith("guard after"):
            text = f"first {_bytes(first)} past the buffer's end"
        else:
            size = arena.buffer.element_size()
            text = f"first at byte {first} (element {first // size}), where nothing may be written"
        found.append(f"{place}: {_bytes(where.numel())} changed, {text}")
    return found


def place(
    buffers: Mapping[str, torch.Tensor],
    *,
    device: torch.device,
    lead_bytes: Callable[[], int] | None = None,
    alignment: int = ALIGNMENT,
) -> Placed:
    """Copy every buffer to `device`, each into an arena of its own with guards around it.

    Args:
        buffers: tensors by name; the copy of a non-contiguous view is contiguous.
        device: where the copies live.
        lead_bytes: called once per buffer; returns the number of bytes before it, rounded up to `alignment`.  Timing and the determinism
            check return random numbers, so that no two placements agree.
        alignment: of the buffers' addresses in bytes; divides `ALIGNMENT`.
    """
    arenas = []
    for name, source in buffers.items():
        nbytes = source.numel() * source.element_size()
        lead = lead_bytes() if lead_bytes is not None else 0
        memory, start = guarded_memory(nbytes, device=device, lead_bytes=lead, alignment=alignment)
        buffer = tensor_at(memory, start, source.shape, source.dtype)
        buffer.copy_(source.detach())
        arenas.append(_Arena(name, memory, start, nbytes, buffer))
    return Placed(arenas)


def random_lead(rng: random.Random, alignment: int = ALIGNMENT) -> int:
    """Bytes before a buffer, for `lead_bytes`."""
    return alignment * rng.randrange(MOST_LEAD * ALIGNMENT // alignment)


def guarded_memory(
    nbytes: int, *, device: torch.device, guard_bytes: int = GUARD_BYTES, lead_bytes: int = 0, alignment: int = ALIGNMENT
) -> tuple[torch.Tensor, int]:
    """Memory for a buffer of `nbytes` bytes between guards (uint8, a storage of its own), and the buffer's offset in bytes."""
    lead, guard = _round_up(lead_bytes, alignment), _round_up(guard_bytes, ALIGNMENT)
    # One alignment unit more, because torch aligns CPU storages to 64 bytes only.
    memory = torch.empty(
        _round_up(lead, ALIGNMENT) + guard + ALIGNMENT + _round_up(nbytes, ALIGNMENT) + guard, dtype=torch.uint8, device=device
    )
    start = lead + guard + -memory.data_ptr() % ALIGNMENT
    end = start + nbytes
    for edge in (memory[:start], memory[end - end % 8 :]):  # the buffer's values overwrite the part of the second inside it
        edge.view(torch.int64).fill_(_GUARD_WORD * 0x0001_0001_0001_0001)
    return memory, start


def tensor_at(memory: torch.Tensor, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of `shape` at byte `start` of `memory`."""
    # set_, not a view of `memory`: to torch.compile the buffer must look like any other tensor at an offset.
    stride = torch.empty(tuple(shape), device="meta").stride()
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory.untyped_storage(), start // dtype.itemsize, tuple(shape), stride)


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
