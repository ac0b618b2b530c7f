"""A fresh random placement of buffers.

The same kernel on two sets of buffers differs by 0.2 to 0.5 % at 14 us and by 1 % at 3 us on an H200, and by the same amount in every
process that allocates in the same order.  So the placement is the unit of replication: the allocator's cache is emptied, and a random
amount of padding precedes every buffer.

Inputs lie between guards, as those of a check do (`accuracy.memory`): a kernel cannot tell a timed call from a checked one by them.

Two versions of a kernel are compared in the same buffers, as far as these have the same size.  Addresses then act on both alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..registry import Kernel, Op
from ..registry.calling import bound_call
from .arm import Arm
from .values import FreshValues
from .watch import Watch
from .yardstick import mix_of, stream_of

if TYPE_CHECKING:
    import torch

COPY = "copy"
"""Name of the copy yardstick's arm: the device's own copy of the op's minimum bytes from one buffer to another.  It is no limit; the gate
asks it whether the streaming yardstick itself changed, whose code comes from Triton as the kernels' does."""
STREAM = "stream"
"""Name of the streaming yardstick's arm: one launch that reads and writes as many bytes as the op (`timing.yardstick`)."""
CONTROL = "control"
"""Name of the control arm: the baseline again, on its own buffers, or in a pair's shared buffers where two revisions are compared."""
PADDING_LIMIT = 8 * 2**20
"""Largest padding before a buffer, in bytes."""
PADDING_STEP = 512
"""Granularity of CUDA's caching allocator, in bytes."""


@dataclass(frozen=True)
class ArmSpec:
    """An arm before it is placed: its name and its kernel (None for a yardstick)."""

    name: str
    kernel: Kernel | None
    params: Any = None
    """The arm's own Params where they differ from the case's: more rows are an injected slowdown."""
    buffer_group: str = ""
    """Name of the buffer group: arms of one group share buffers; arms without a group have their own."""


def arm_specs(kernels: Sequence[Kernel], baseline: Kernel, extra: Sequence[ArmSpec] = ()) -> list[ArmSpec]:
    """The arms of one comparison: both yardsticks, the baseline twice (once as the control), every other kernel, and the `extra` ones."""
    others = [kernel for kernel in kernels if kernel.id != baseline.id]
    return [
        ArmSpec(COPY, None),
        ArmSpec(STREAM, None),
        ArmSpec(str(baseline.id), baseline),
        ArmSpec(CONTROL, baseline),
        *(ArmSpec(str(kernel.id), kernel) for kernel in others),
        *extra,
    ]


class Placement:
    """Places arms one after the other, and keeps their padding alive as long as itself."""

    def __init__(self, op: Op, params: Any, values: Mapping[str, torch.Tensor], device: torch.device, rng: random.Random) -> None:
        """`values`: the case's inputs by name, copied to every arm's own buffers; `FreshValues` give every call new ones."""
        import torch

        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._op, self._params, self._values, self._device, self._rng = op, params, values, device, rng
        self._padding: list[torch.Tensor] = []
        self.watches: dict[str, Watch] = {}
        """By arm, what watches its calls; none for arms whose values stay."""

    def arm(self, spec: ArmSpec, values: Mapping[str, torch.Tensor] | None = None) -> Arm:
        """`spec` on buffers of its own; `values` are its inputs where it has Params of its own."""
        return self.together([spec], {} if values is None else {spec.name: values})[0]

    def together(self, specs: Sequence[ArmSpec], own_values: Mapping[str, Mapping[str, torch.Tensor]]) -> list[Arm]:
        """`specs` in shared buffers; each buffer has the largest size that an arm needs.

        Arms with different Params still have integers of their own, because an index of one may point outside the other's buffers.  All
        arms read the last arm's floating-point inputs where they do not overwrite them; time does not depend on the values.  Yardsticks
        share no buffer.

        Args:
            own_values: inputs by name, by name of an arm with Params of its own.
        """
        values = {spec.name: own_values.get(spec.name, self._values) for spec in specs if spec.kernel is not None}
        shared = self._shared(list(values.values()))
        arms = []
        for spec in specs:
            if spec.kernel is None:
                arms.append(self._copy() if spec.name == COPY else self._stream())
            else:
                own = values[spec.name]
                placed = {key: self._placed(value, shared.get((key, value.dtype))) for key, value in own.items()}
                arms.append(self._kernel(spec.name, spec.kernel, self._params if spec.params is None else spec.params, own, placed))
        return arms

    def _shared(self, values: Sequence[Mapping[str, torch.Tensor]]) -> dict[tuple[str, torch.dtype], tuple[torch.Tensor, int]]:
        """By name and dtype, memory for the largest of `values`; integers only where all arms have the same ones."""
        same = all(one is values[0] for one in values)
        sizes: dict[tuple[str, torch.dtype], int] = {}
        for one in values:
            for key, value in one.items():
                sizes[key, value.dtype] = max(sizes.get((key, value.dtype), 0), value.nbytes)
        return {which: self._guarded(size) for which, size in sizes.items() if same or which[1].is_floating_point}

    def _placed(self, value: torch.Tensor, memory: tuple[torch.Tensor, int] | None) -> torch.Tensor:
        """A copy of `value` at the start of a buffer in `memory`, or in memory of its own where that is None."""
        from ..accuracy.memory import tensor_at

        arena, start = self._guarded(value.nbytes) if memory is None else memory
        return tensor_at(arena, start, value.shape, value.dtype).copy_(value)

    def _guarded(self, nbytes: int) -> tuple[torch.Tensor, int]:
        from ..accuracy.memory import guarded_memory, random_lead

        self._pad()
        return guarded_memory(nbytes, device=self._device, lead_bytes=random_lead(self._rng))

    def _pad(self) -> None:
        import torch

        padding = self._rng.randrange(0, PADDING_LIMIT, PADDING_STEP)
        self._padding.append(torch.empty(padding, dtype=torch.uint8, device=self._device))

    def _words(self, words: int) -> torch.Tensor:
        import torch

        self._pad()
        return torch.empty(words, dtype=torch.int32, device=self._device)

    def _generator(self) -> torch.Generator:
        """Of random words; torch's default one stays unusable in a process where the capture of a CUDA graph has failed."""
        import torch

        return torch.Generator(device=self._device).manual_seed(self._rng.getrandbits(63))

    def _copy(self) -> Arm:
        words = max(1, self._op.minimum_bytes(self._params) // 8)  # one half is read and one half is written
        source, target = self._words(words).random_(generator=self._generator()), self._words(words)
        return Arm(COPY, lambda: target.copy_(source), lambda: None)

    def _stream(self) -> Arm:
        return Arm(STREAM, stream_of(mix_of(self._op, self._params), self._words, self._device, self._generator()), lambda: None)

    def _kernel(
        self, name: str, kernel: Kernel, params: Any, values: Mapping[str, torch.Tensor], placed: Mapping[str, torch.Tensor]
    ) -> Arm:
        """`values`: the original inputs; `placed`, the arm's buffers, are restored from them where a call overwrites them."""
        arguments = dict(self._op.arguments(params, placed))
        if isinstance(values, FreshValues):
            watch = self.watches[name] = Watch(kernel, self._op, params, values, placed)
            return Arm(name, bound_call(self._op, kernel, arguments), watch.restore, watch.after)
        originals = self._op.arguments(params, values)
        outputs = self._op.outputs_of(params) if self._op.in_place else ()
        overwritten = [(arguments[output], originals[output]) for output in outputs]

        def restore() -> None:
            for target, original in overwritten:
                target.copy_(original)

        return Arm(name, bound_call(self._op, kernel, arguments), restore)


def minimum_bytes(spec: ArmSpec, op: Op, params: Any) -> int:
    """Minimum bytes of the arm's work in any implementation; a yardstick moves the bytes of the case, whose Params are `params`."""
    work, own = _work_of(spec, op, params)
    return work.minimum_bytes(own)


def memory_bytes(spec: ArmSpec, op: Op, params: Any, cache_bytes: int) -> int:
    """Those of `minimum_bytes` that the memory must have moved when a cold call ends.

    They are the bytes read, and the bytes written that the last-level cache of `cache_bytes` cannot hold: it writes the others back later.
    """
    work, own = _work_of(spec, op, params)
    moved = work.minimum_bytes(own)
    written = moved // 2 if spec.name == COPY else work.bytes_written(own)
    return moved - min(written, cache_bytes)


def _work_of(spec: ArmSpec, op: Op, params: Any) -> tuple[Op, Any]:
    """The op, or the part of it that the arm's kernel covers, and the Params of the arm's calls."""
    part = spec.kernel.part if spec.kernel is not None else None
    return op if part is None else part.op_of(op), params if spec.params is None else spec.params
