"""A fresh random placement of an arm's buffers.

The same kernel on two sets of buffers differs by 0.2 to 0.5 % at 14 us and by 1 % at 3 us on an H200, and by the same amount in every
process that allocates in the same order.  So the placement is what is replicated: the allocator's cache is emptied and a random
amount of padding lies before every buffer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..registry import Kernel, Op
from ..registry.op import positional_names
from .arm import Arm

if TYPE_CHECKING:
    import torch

COPY = "copy"
"""Name of the first yardstick arm: the device's own copy, moving the op's minimum bytes from one buffer to another."""
STREAM = "stream"
"""Name of the second: one elementwise launch that reads and writes as many bytes, in place where the op works in place.  A copy of a
few megabytes is slower than a launch, and one out of place has twice the footprint in the cache; the faster of the two is the
yardstick."""
CONTROL = "control"
"""Name of the control arm: the baseline again, on its own buffers."""
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
    """Params of this arm alone, where they are not the case's: a slowdown is planted by giving a kernel more rows."""


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
    """Places arms one after the other and keeps their padding alive for as long as it lives itself."""

    def __init__(self, op: Op, params: Any, values: Mapping[str, torch.Tensor], device: torch.device, rng: random.Random) -> None:
        """`values`: of the case's inputs, copied to every arm's own buffers."""
        import torch

        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._op, self._params, self._values, self._device, self._rng = op, params, values, device, rng
        self._padding: list[torch.Tensor] = []

    def arm(self, spec: ArmSpec, values: Mapping[str, torch.Tensor] | None = None) -> Arm:
        """`spec` on buffers of its own; `values` where it has Params, and so inputs, of its own."""
        if spec.kernel is not None:
            return self._kernel(
                spec.name, spec.kernel, self._params if spec.params is None else spec.params, self._values if values is None else values
            )
        return self._copy() if spec.name == COPY else self._stream()

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        import torch

        padding = self._rng.randrange(0, PADDING_LIMIT, PADDING_STEP)
        self._padding.append(torch.empty(padding, dtype=torch.uint8, device=self._device))
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _yardstick_buffer(self) -> torch.Tensor:
        """Random words, half as many bytes as the op must move: they are read once and as many are written."""
        import torch

        words = max(1, self._op.minimum_bytes(self._params) // 8)
        # A generator of its own: torch's default one stays unusable in a process where the capture of a CUDA graph has failed.
        generator = torch.Generator(device=self._device).manual_seed(self._rng.getrandbits(63))
        return self._empty((words,), torch.int32).random_(generator=generator)

    def _copy(self) -> Arm:
        source, target = self._yardstick_buffer(), self._yardstick_buffer()
        return Arm(COPY, lambda: target.copy_(source), lambda: None)

    def _stream(self) -> Arm:
        import torch

        source = self._yardstick_buffer()
        target = source if self._op.in_place else self._yardstick_buffer()
        return Arm(STREAM, lambda: torch.bitwise_not(source, out=target), lambda: None)

    def _kernel(self, name: str, kernel: Kernel, params: Any, values: Mapping[str, torch.Tensor]) -> Arm:
        placed = {key: self._empty(tuple(value.shape), value.dtype).copy_(value) for key, value in values.items()}
        arguments = dict(self._op.arguments(params, placed))
        originals = self._op.arguments(params, values)
        outputs = self._op.outputs_of(params) if self._op.in_place else ()
        overwritten = [(arguments[output], originals[output]) for output in outputs]

        def restore() -> None:
            for target, original in overwritten:
                target.copy_(original)

        return Arm(name, bound_call(self._op, kernel, arguments), restore)


def minimum_bytes(spec: ArmSpec, op: Op, params: Any) -> int:
    """Bytes that any implementation of the arm's work must move; a yardstick moves those of the case, whose Params are `params`."""
    own = params if spec.params is None else spec.params
    part = spec.kernel.part if spec.kernel is not None else None
    return op.minimum_bytes(own) if part is None else part.minimum_bytes(own)


def bound_call(op: Op, kernel: Kernel, arguments: Mapping[str, Any]) -> Any:
    """A no-argument callable that calls `kernel` as model code does: tensors by position, the rest by name."""
    positional = positional_names(op.schema)
    values = [arguments[name] for name in positional]
    keywords = {name: value for name, value in arguments.items() if name not in positional}
    return lambda: kernel(*values, **keywords)
