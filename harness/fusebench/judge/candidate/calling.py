"""The calls of a batch, in the process of the candidate and, by the same code, in the baseline's.

Every batch is treated alike: inputs at fresh addresses, the collector off, memory that the outputs may get filled with poison, one clock
around the call and nothing else, outputs handed back at once.  Nothing here knows what is compared, and nothing here holds a reference.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...accuracy.poison import poisoned
from ...accuracy.write_protection import write_protected
from ...registry.signature import positional_names
from ...schema import Language
from ..channel.protocol import Batch, BatchDone, CallDone, CallSpec, Inspect, Inspected, TensorSpec
from ..channel.region import ALIGNMENT, PAGE, Region
from ..channel.views import Arena, dtype_of, spec_of
from .calling_cuda import DeviceCall
from .tampering import Tampering

if TYPE_CHECKING:
    from ...registry import Kernel, Op
    from .calling_cuda import CudaClock

# What a candidate replaces in the module `time` or in `torch.Tensor` later on changes nothing here.
_clock = time.perf_counter_ns
_own_cpu, _all_cpu, _sleep = time.thread_time_ns, time.process_time_ns, time.sleep
_Tensor, _copy, _clone, _tuple, _list, _type = torch.Tensor, torch.Tensor.copy_, torch.Tensor.clone, tuple, list, type

_READING_NS = 5000
"""By how much the two CPU clocks may disagree per call: each takes under a microsecond to read."""
_QUIET_S = 0.001
"""Time after the last call of a batch in which nothing should compute."""


class _Placed:
    """One call, ready to be made."""

    def __init__(self, spec: CallSpec, region: Region, device: torch.device, positional: Sequence[str], mutable: Collection[str]) -> None:
        self.spec = spec
        self.arenas = [Arena(one, region, device) for one in spec.arenas]
        tensors = {name: self.arenas[one.arena].view(one) for name, one in spec.tensors.items()}
        values = {**tensors, **spec.options}
        self.args = [values[name] for name in positional]
        self.kwargs = {name: value for name, value in values.items() if name not in positional}
        self.output_area = region.bytes_at(spec.output_start, spec.output_bytes)
        self.returned: Any = None
        self.kept: dict[int, torch.Tensor] = {}
        """On a GPU, copies of new outputs by place, made in the order of the calling stream."""
        self.written = ""
        free = {one.arena for name, one in spec.tensors.items() if name in mutable}
        names = {one.arena: name for name, one in spec.tensors.items() if one.arena not in free}
        # Without the outer page of each guard, so that the pages around hold nothing else.
        self.read_only = {
            name: (arena.address + arena.shift + PAGE, arena.address + arena.shift + arena.spec.nbytes - PAGE)
            for arena, name in ((self.arenas[number], name) for number, name in names.items())
        }

    def fill(self) -> None:
        """Write the call's values into its arenas."""
        for arena in self.arenas:
            arena.fill()


def tensors_like(expected: Sequence[TensorSpec], device: torch.device) -> list[torch.Tensor]:
    """Tensors of the sizes and dtypes of `expected`, made on `device` at once: a meta tensor's `empty_like` imports SymPy, for seconds."""
    return [torch.empty(one.size, dtype=dtype_of(one.dtype), device=device) for one in expected]


class Caller:
    """Makes the calls of one kernel on one device."""

    def __init__(
        self, kernel: Kernel, op: Op, device: torch.device, tampering: Tampering, *, cuda: CudaClock | None, mark: Callable[[str], None]
    ) -> None:
        """
        Args:
            cuda: the clock on a GPU; None on a CPU.
            mark: tells the judge, with a batch's token, that its calls begin or are through.
        """
        self._kernel, self._op, self._device, self._tampering = kernel, op, device, tampering
        self._positional = positional_names(op.schema)
        self._cuda, self._mark = cuda, mark
        self._mutable = op.outputs if op.in_place else ()
        # Triton's interpreter writes every argument back after a launch, changed or not.
        self._protected = cuda is None and kernel.language is not Language.TRITON
        self._calls_cpu_ns = self._others_cpu_ns = 0

    def run(self, batch: Batch, region: Region) -> BatchDone:
        """Make every call of `batch`; errors of the kernel are raised as they are."""
        region.follow(batch.region_bytes)
        like = tensors_like(batch.expected, self._device if self._device.type == "cuda" else torch.device("meta"))
        placed = [_Placed(one, region, self._device, self._positional, self._mutable) for one in batch.calls]
        done: list[CallDone] = []
        self._calls_cpu_ns = self._others_cpu_ns = 0
        gc.collect(0)
        gc.disable()
        try:
            if self._cuda is None:
                timed, late_share = self._time_on_host(placed, like)
            else:
                calls = [DeviceCall(self._call(one), one.fill, partial(self._keep, one)) for one in placed]
                timed, late_share = self._cuda.time(calls, like, lambda: self._mark(batch.token)), 0.0
            for number, (one, (span_ns, launches)) in enumerate(zip(placed, timed, strict=True)):
                if self._cuda is not None:
                    self._hand_back(one)
                done.append(self._done(one, number, placed, span_ns, launches))
        finally:
            gc.enable()
        untimed, late_calls = (self._cuda.problem, self._cuda.late_calls) if self._cuda is not None else ("", 0)
        return BatchDone(
            token=batch.token,
            calls=tuple(done),
            late_share=late_share,
            calls_cpu_ns=self._calls_cpu_ns,
            others_cpu_ns=self._others_cpu_ns,
            untimed=untimed,
            late_calls=late_calls,
        )

    def inspect(self, request: Inspect) -> Inspected:
        """Say what of the harness was replaced."""
        return Inspected(token=request.token, tampering=self._tampering.found())

    def _call(self, one: _Placed) -> Callable[[], None]:
        kernel, args, kwargs = self._kernel, one.args, one.kwargs

        def call() -> None:
            one.returned = kernel(*args, **kwargs)

        return call

    def _time_on_host(self, placed: Sequence[_Placed], like: Sequence[torch.Tensor]) -> tuple[list[tuple[int, int]], float]:
        """Span of each call and, as a share of the time watched, the CPU time of other threads after calls had returned."""
        kernel, clock, timed, late, busy = self._kernel, _clock, list[tuple[int, int]](), 0, 0
        for one in placed:
            args, kwargs = one.args, one.kwargs
            fill = poisoned([torch.empty(each.shape, dtype=each.dtype) for each in like], intercept=False)
            with fill, write_protected(one.read_only if self._protected else {}) as written:
                used, all_used = _own_cpu(), _all_cpu()
                before = clock()
                returned = kernel(*args, **kwargs)
                span = clock() - before
                own = _own_cpu() - used
                self._calls_cpu_ns += own
                self._others_cpu_ns += max(0, _all_cpu() - all_used - own - _READING_NS)
            others = _all_cpu() - _own_cpu()
            one.returned = returned
            one.written = ", ".join(sorted(written))
            self._hand_back(one)
            late += _all_cpu() - _own_cpu() - others
            busy += span
            timed.append((span, 0))
        began, others = clock(), _all_cpu() - _own_cpu()
        _sleep(_QUIET_S)  # whoever computes now does so outside of any call
        quiet = (_all_cpu() - _own_cpu() - others) / max(1, clock() - began)
        return timed, max(quiet, (late - _READING_NS * len(placed)) / max(1, busy))

    def _hand_back(self, one: _Placed) -> None:
        """Copy every arena and every new output to the shared memory, at once."""
        for arena in one.arenas:
            arena.hand_back()
        start = 0
        for place, output in enumerate(_plain(one.returned) or ()):
            if not self._is_new(output, one):
                continue
            nbytes = output.numel() * output.element_size()
            if start + nbytes > len(one.output_area):
                continue
            if nbytes:
                area = one.output_area[start : start + nbytes]
                _copy(area.view(output.dtype).view(output.shape), one.kept.get(place, output).detach())
            start += -(-nbytes // ALIGNMENT) * ALIGNMENT

    def _keep(self, one: _Placed) -> None:
        """Copy what the call left on the device, on the current stream."""
        for arena in one.arenas:
            arena.keep()
        one.kept = {place: _clone(output) for place, output in enumerate(_plain(one.returned) or ()) if self._is_new(output, one)}

    def _is_new(self, output: Any, one: _Placed) -> bool:
        """Whether `output` is a plain tensor of this device in memory that is no argument's."""
        if _type(output) is not _Tensor or output.layout is not torch.strided or output.device.type != self._device.type:
            return False
        return _materialised(output) and self._arena_of(output, one) < 0

    def _done(self, one: _Placed, number: int, placed: Sequence[_Placed], span_ns: int, launches: int) -> CallDone:
        if one.returned is None:
            return CallDone(span_ns=span_ns, outputs=None, launches=launches, written=one.written)
        outputs = _plain(one.returned)
        strange = "" if outputs is not None else f"returned {_type(one.returned).__name__}, expected one tensor per output"
        specs: list[TensorSpec] = []
        for output in outputs or ():
            strange = strange or self._strange(output)
            if strange:
                break
            arena = self._arena_of(output, one)
            shift = one.arenas[arena].shift if arena >= 0 else 0
            specs.append(spec_of(output, arena, shift=shift))
        shared = () if strange else _tuple(earlier for earlier in range(number) if self._share(placed[earlier], one))
        return CallDone(span_ns=span_ns, outputs=_tuple(specs), strange=strange, shared=shared, launches=launches, written=one.written)

    def _strange(self, output: Any) -> str:
        kind = _type(output)
        if kind is not _Tensor:
            return f"returned a {kind.__module__}.{kind.__qualname__}, expected plain torch tensors: no subclass, no lazy result"
        if output.layout is not torch.strided or output.is_conj() or output.is_neg():
            lazy = f"conj={output.is_conj()}, neg={output.is_neg()}"
            return f"returned a tensor of layout {output.layout} with {lazy}; expected a plain strided one"
        if output.device.type != self._device.type:
            return f"returned a tensor on {output.device}, expected {self._device}"
        if not _materialised(output):
            return "returned a tensor without memory of its own size: its values were not computed"
        return ""

    def _arena_of(self, output: torch.Tensor, one: _Placed) -> int:
        """Number of the arena whose memory `output` is; -1 for memory of its own."""
        address = output.untyped_storage().data_ptr()
        return next((number for number, arena in enumerate(one.arenas) if output.numel() and arena.address == address), -1)

    def _share(self, earlier: _Placed, one: _Placed) -> bool:
        """Whether both calls returned the same memory, other than that of the arguments."""
        before = [_extent(output) for output in _plain(earlier.returned) or () if output.numel()]
        now = [_extent(output) for output in _plain(one.returned) or () if output.numel() and self._arena_of(output, one) < 0]
        return any(start < other_end and other < end for start, end in now for other, other_end in before)


def _plain(returned: Any) -> tuple[Any, ...] | None:
    """The returned tensors; None if the value is neither a tensor nor a tuple or list of such."""
    if isinstance(returned, _Tensor):
        return (returned,)
    if _type(returned) in (_tuple, _list) and all(isinstance(output, _Tensor) for output in returned):
        return _tuple(returned)
    return None


def _materialised(output: torch.Tensor) -> bool:
    """Whether the storage has memory for every element."""
    if not output.numel():
        return True
    start, end = _extent(output)
    storage = output.untyped_storage()
    return start != 0 and end <= storage.data_ptr() + storage.nbytes()


def _extent(output: torch.Tensor) -> tuple[int, int]:
    """First address of a tensor with elements, and the one behind its last: slices of one buffer are different memory."""
    last = sum((n - 1) * step for n, step in zip(output.shape, output.stride(), strict=True))
    start = int(output.data_ptr())
    return start, start + (last + 1) * int(output.element_size())
