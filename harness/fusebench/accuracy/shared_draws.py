"""Draws of one case that every kernel's check uses: inputs, float64 reference, and the split chain's outputs with their errors.

A seed gives the same draws in any process and for any kernel, whatever was drawn before.  So a draw is computed once, kept while there is
room, and computed again where there was none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from ..registry.kernel import Kernel
from ..registry.op import Buffers, Op
from .comparison import Reference
from .draws import Special, is_small, keep_in_range, plant, plant_in_parameters, special_draws
from .execution import run_plain
from .metrics import ErrorMetrics, as_bits

ROOM_SHARE = 4
"""Draws may take this part of the memory that is free before the first one: a quarter.  A check without kept draws needs some thirteen
times the bytes of an output, and a draw six to twelve times; the rest stays free for kernels and for other processes.  On an H200 a quarter
holds all draws of the largest cases (3.1 GB): a check of one took 0.37 s, and 0.55 s by an eighth, where draws were made again."""


Timed = Callable[[], AbstractContextManager[None]]
"""Entered around each draw, by whoever counts the time of draws."""


@dataclass(frozen=True)
class Draw:
    """One draw.  Kernels get copies of `buffers`, never a tensor of the draw itself."""

    params: Any
    """The case's, or those of its variant."""
    buffers: Buffers
    references: Mapping[str, Reference]
    split: tuple[torch.Tensor, ...]
    """The split chain's outputs."""
    split_errors: Mapping[str, ErrorMetrics]

    def tensors(self) -> list[torch.Tensor]:
        """Everything that a later check of another kernel relies on."""
        return [*self.buffers.values(), *self.split, *(reference.values for reference in self.references.values())]

    @property
    def nbytes(self) -> int:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self.tensors()}
        return sum(storages.values())


def draw_of(op: Op, params: Any, buffers: Buffers, split: Kernel) -> Draw:
    """The draw of these inputs: their reference, and the outputs of `split` with their errors."""
    values = op.reference(params, op.arguments(params, buffers))
    outputs = run_plain(split, op, params, buffers)
    names = op.outputs_of(params)
    references = {name: Reference(values[name], due.dtype) for name, due in zip(names, outputs, strict=True)}
    errors = {name: references[name].errors(due) for name, due in zip(names, outputs, strict=True)}
    return Draw(params, buffers, references, outputs, errors)


class Draws:
    """The draws of one case, by magnitude and number."""

    def __init__(
        self, op: Op, params: Any, *, split: Kernel, device: torch.device, seed: int, room: int = 0, timed: Timed = nullcontext
    ) -> None:
        """`seed`: of all draws.  `room`: bytes of draws to keep."""
        self.seed = seed
        self._timed = timed
        self._op, self._params, self._split, self._device = op, params, split, device
        self._room = room
        self._kept: dict[tuple[float, int, tuple[Special, ...], bool], tuple[Draw, list[int]]] = {}
        self.magnitudes = op.magnitudes(params)
        self.variant = op.variant(params, random.Random(f"{seed} variant"))
        """The case with another option than its own; None where the op has none."""
        self._unit: tuple[tuple[Special, ...], ...] | None = None

    def unit_specials(self) -> tuple[tuple[Special, ...], ...]:
        """The special values of the first draws of magnitude 1: none and then some or, where inputs are large, some in the only draw."""
        if self._unit is None:
            buffers = self._inputs(1.0, random.Random(0))  # of the sizes of any draw
            planted = special_draws(buffers)
            self._unit = ((), *planted) if len(planted) > 1 or is_small(buffers) else tuple(planted)
        return self._unit

    def draw(self, magnitude: float, number: int, specials: tuple[Special, ...], *, variant: bool = False) -> Draw:
        """The `number`-th draw of `magnitude`, in which `specials` are planted; of the case's variant on request."""
        key = (magnitude, number, specials, variant)
        if key in self._kept:
            return self._kept[key][0]
        with self._timed():
            return self._made(key)

    def _made(self, key: tuple[float, int, tuple[Special, ...], bool]) -> Draw:
        magnitude, number, specials, variant = key
        params = self.variant if variant else self._params
        rng = random.Random(f"{self.seed} {magnitude} {number}")
        buffers = self._inputs(magnitude, rng)
        plant(buffers, specials, rng)
        plant_in_parameters(self._op.arguments(params, buffers), specials, rng, reduced=self._op.reduced)
        draw = draw_of(self._op, params, buffers, self._split)
        if draw.nbytes <= self._room:
            self._room -= draw.nbytes
            self._kept[key] = (draw, _checksums([draw]))
        return draw

    @property
    def nbytes(self) -> int:
        """Bytes of the draws that are kept."""
        return sum(draw.nbytes for draw, _ in self._kept.values())

    def overwritten(self) -> bool:
        """Whether memory of a kept draw has changed, which only a stray write can do; the draws are then dropped."""
        draws, before = [draw for draw, _ in self._kept.values()], [one for _, sums in self._kept.values() for one in sums]
        if _checksums(draws) == before:
            return False
        self._kept.clear()
        self._room = 0
        return True

    def _inputs(self, magnitude: float, rng: random.Random) -> Buffers:
        generator = torch.Generator(device=self._device).manual_seed(rng.getrandbits(63))
        buffers = self._op.buffers(self._params, device=self._device, generator=generator, magnitude=magnitude)
        if magnitude >= 1.0:  # below, the values of timed calls
            buffers = self._op.unusual(self._params, buffers, generator=generator)
        keep_in_range(buffers)
        return buffers


class DrawStore:
    """The draws of the case that is being checked, which the checks of its kernels share."""

    def __init__(self) -> None:
        self._case: Hashable = None
        self._draws: dict[Hashable, Draws] = {}

    def of(self, case: Hashable, share: Hashable, make: Callable[[], Draws]) -> Draws:
        """The draws of `case` under `share`: another case drops those of the last one, other parts of a case have draws of their own."""
        if case != self._case:
            self.clear()
            self._case = case
        if share not in self._draws:
            self._draws[share] = make()
        return self._draws[share]

    @property
    def nbytes(self) -> int:
        """Bytes of all draws that are kept."""
        return sum(draws.nbytes for draws in self._draws.values())

    def clear(self) -> None:
        """Return the memory of all draws."""
        self._case = None
        self._draws.clear()


def room_on(device: torch.device) -> int:
    """Bytes of `device` that draws may take for now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (torch.cuda.mem_get_info(device)[0] + cached) // ROOM_SHARE
    return int(psutil.virtual_memory().available) // ROOM_SHARE


def _checksums(draws: Sequence[Draw]) -> list[int]:
    """One number per tensor of `draws`, which a change of an element changes; one wait for the device."""
    sums = [as_bits(tensor).sum(dtype=torch.int64) for draw in draws for tensor in draw.tensors()]
    return torch.stack(sums).tolist() if sums else []
