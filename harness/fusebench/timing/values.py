"""Fresh inputs for every timed call, at the cost of a device copy: windows at random places of a pool drawn once per process.

A kernel that keeps results by address, by shape or by a fingerprint of its inputs would be fast, right in its check, and useless.  So a
call finds values that no earlier call of the process had, as long as there are windows left.  A window has the structure of a draw:
channels keep their places in inputs with many rows, and integers (positions, indices) stay whole draws, so that access patterns are those
of a draw.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..registry import Op

if TYPE_CHECKING:
    import torch

WINDOWS = 1024
"""Windows of an input, if it has that many places: more than a process makes calls of an arm on one case (240 in a nightly)."""
FEW_ROWS = 64
"""Inputs of fewer rows are shifted by elements: a weight is one row, which has one window."""
SMALL = 1 << 16
"""Elements of all inputs below which up to `MOST_DRAWS` draws fill the pool; larger ones take two."""
MOST_DRAWS = 16

Key = tuple[int, ...]
"""The place of each input's window, in their order."""


class FreshValues(Mapping[str, "torch.Tensor"]):
    """The inputs of a case by name, as its first draw has them, and more of them by key."""

    def __init__(self, op: Op, params: Any, *, device: torch.device, generator: torch.Generator, rng: random.Random) -> None:
        """
        Args:
            generator: of the values.
            rng: of the windows' order.
        """
        first = op.buffers(params, device=device, generator=generator)
        elements = sum(value.numel() for value in first.values())
        draws = min(MOST_DRAWS, -(-WINDOWS // max(1, elements)) + 1) if elements < SMALL else 2
        draws = max(2, draws)
        others = [op.buffers(params, device=device, generator=generator) for _ in range(draws - 1)]
        self._inputs = {name: _pool_of([value, *(other[name] for other in others)], rng) for name, value in first.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._inputs[name].at(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def next_place(self, name: str) -> int:
        """A place of an input's window that was not used yet, or not for as long as possible."""
        return self._inputs[name].next_place()

    def next_key(self) -> Key:
        """New places for all inputs."""
        return tuple(pool.next_place() for pool in self._inputs.values())

    def window(self, name: str, place: int) -> torch.Tensor:
        """The values of one input at a place: a view of the pool, for reading only."""
        return self._inputs[name].at(place)

    def at(self, key: Key) -> dict[str, torch.Tensor]:
        """The values of all inputs, as views of the pool."""
        return {name: pool.at(place) for (name, pool), place in zip(self._inputs.items(), key, strict=True)}


class _Pool:
    """The windows of one input."""

    def __init__(self, flat: torch.Tensor, shape: tuple[int, ...], unit: int, places: int, rng: random.Random) -> None:
        """
        Args:
            flat: all values, one after the other.
            unit: elements between neighbouring windows.
            places: number of windows.
        """
        self._flat, self._shape, self._unit, self._places, self._rng = flat, shape, unit, places, rng
        self._elements = 1
        for size in shape:
            self._elements *= size
        self._deck: list[int] = []

    def at(self, place: int) -> torch.Tensor:
        start = place * self._unit
        return self._flat[start : start + self._elements].view(self._shape)

    def next_place(self) -> int:
        if not self._deck:
            self._deck = self._rng.sample(range(self._places), self._places)
        return self._deck.pop()


def _pool_of(draws: list[torch.Tensor], rng: random.Random) -> _Pool:
    import torch

    shape, elements = tuple(draws[0].shape), draws[0].numel()
    if not draws[0].is_floating_point() or not elements:
        return _Pool(torch.cat([draw.reshape(-1) for draw in draws]), shape, elements, len(draws) if elements else 1, rng)
    width = shape[-1] if shape else 1
    unit = width if elements // width >= FEW_ROWS else 1
    more = min(WINDOWS * unit, (len(draws) - 1) * elements)
    pieces = [draws[0].reshape(-1)]
    for draw in draws[1:]:
        pieces.append(draw.reshape(-1)[: more - sum(piece.numel() for piece in pieces[1:])])
    flat = torch.cat(pieces)
    if flat.dtype == torch.float16:
        flat.clamp_(-torch.finfo(flat.dtype).max, torch.finfo(flat.dtype).max)  # as a check's draws (`accuracy.draws.keep_in_range`)
    return _Pool(flat, shape, unit, 1 + more // unit, rng)
