"""Batches of calls from the judge to a process that calls kernels, and their results as calls that the accuracy gate can make.

Arguments travel as the arenas that hold them: the judge's guards, leads and addresses are what the candidate's kernel sees, and every byte
comes back.  So the gate's own checks (guards, read-only inputs, outputs that are inputs) look at the candidate's memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..schema.evaluation import EvaluationStatus
from .channel.protocol import ArenaSpec, Batch, BatchDone, CallDone, CallSpec, Inspect, Inspected, ProtocolError, TensorSpec
from .channel.region import ALIGNMENT, Region
from .channel.views import dtype_of, spec_of, view_of
from .failures import CandidateError
from .patience import Limits
from .phases import CALLS, COPIES, FIRST_CALLS, INSPECT, Phases
from .process import KernelProcess

_MOST_ELEMENTS = 2**48
"""Of an output, however large it claims to be: torch refuses sizes whose bytes no 64-bit number holds."""
_OUTPUT_SLACK = 2
"""Room for returned tensors as a multiple of the expected bytes: one of a wrong shape is named, not cut."""


class BatchTimes(NamedTuple):
    """What both clocks say of one batch."""

    spans_ns: tuple[int, ...]
    """By the process's own clock, call by call."""
    wall_s: float
    """From the request to its answer, by the judge's clock."""
    inner_s: float | None
    """From the first call's preparation to the last one's end, by the judge's clock; None on a CPU."""
    cpu_s: float
    """CPU time that the process used between request and answer, by the kernel's account."""
    calls_cpu_s: float
    """The part of it in the calls, by the process's own account."""
    others_cpu_s: float
    """CPU time of other threads during the calls, by the process's own account."""
    new_bytes: int
    """Bytes of new outputs that were copied within `wall_s`."""
    late_share: float
    untimed: str
    late_calls: int
    """Calls in which the device waited for the host, by the process's own account."""


@dataclass
class Returned:
    """One call's result, copied out of the shared memory."""

    done: CallDone
    arenas: list[torch.Tensor]
    """The bytes of each arena after the call."""
    outputs: list[torch.Tensor]
    """New outputs, packed, by place; None where one is a view of an arena."""
    number: int
    """Place of the call in its batch."""

    def deliver(self, keywords: Mapping[str, Any]) -> tuple[torch.Tensor, ...] | None:
        """Do to the gate's own buffers what the call did to its copy, and return what it returned.

        Raises:
            CandidateError: the call returned no plain tensors, or memory that an earlier call returned.
        """
        storages = _storages(keywords)
        for storage, memory in zip(storages, self.arenas, strict=True):
            _take_over(storage, memory)
        if self.done.strange:
            raise CandidateError(EvaluationStatus.WRONG, self.done.strange)
        if self.done.written:
            raise CandidateError(EvaluationStatus.WRONG, f"written during the call: {self.done.written}; inputs are no workspace")
        if self.done.shared:
            raise CandidateError(
                EvaluationStatus.WRONG,
                "an output is the memory that an earlier call returned, which the caller still holds",
            )
        if self.done.outputs is None:
            return None
        device = self.arenas[0].device
        found = []
        for spec, new in zip(self.done.outputs, self.outputs, strict=True):
            if spec.arena < 0:
                found.append(new)
            else:
                storage = storages[spec.arena]
                try:
                    found.append(view_of(spec, storage, shift=0, nbytes=storage.nbytes(), device=device))
                except ProtocolError as error:
                    raise CandidateError(EvaluationStatus.HACKED, f"an output that no call can return: {error}") from error
        return tuple(found)


class Exchange:
    """Runs batches in one process for one case."""

    def __init__(
        self,
        process: KernelProcess,
        expected: Sequence[torch.Tensor],
        *,
        phases: Phases | None = None,
        names: tuple[str, str] = (FIRST_CALLS, CALLS),
    ) -> None:
        """
        Args:
            expected: outputs of the split chain, for shapes and dtypes.
            phases: where its time is counted, as the first and the second of `names`: the first batch, and the others.
        """
        self._process = process
        self._phases, self._names = phases or Phases(), names
        self._expected = tuple(TensorSpec(-1, str(one.dtype)[6:], 0, tuple(one.shape), tuple(one.stride())) for one in expected)
        self._output_bytes = _OUTPUT_SLACK * sum(_packed(one) for one in self._expected)
        self.calls = 0
        self._shapes: set[Any] = set()
        """Of the calls that were answered: their kernels are compiled."""

    def run(self, sets: Sequence[Mapping[str, Any]], *, limits: Limits, doing: str) -> tuple[list[Returned], BatchTimes]:
        """Make one call per set of arguments; the results by place.

        Raises:
            CandidateError: the process failed, or tampered with the harness.
        """
        specs, answer, times = self._asked(sets, limits, doing)
        device = next(value.device for value in sets[0].values() if isinstance(value, torch.Tensor))
        try:
            pairs = enumerate(zip(specs, answer.calls, strict=True))
            with self._phases.timed(COPIES):
                returned = [self._unpack(spec, done, device, number) for number, (spec, done) in pairs]
        except ProtocolError as error:
            raise CandidateError(EvaluationStatus.HACKED, f"during {doing}: {error}") from error
        self._inspect(limits, doing)  # after the copies: no clock runs meanwhile, and what the process writes then comes too late
        return returned, times

    def time(self, sets: Sequence[Mapping[str, Any]], *, limits: Limits, doing: str) -> BatchTimes:
        """As `run`, for a process whose results nobody compares.

        Raises:
            CandidateError: the process failed.
        """
        return self._asked(sets, limits, doing)[2]

    def _asked(self, sets: Sequence[Mapping[str, Any]], limits: Limits, doing: str) -> tuple[list[CallSpec], BatchDone, BatchTimes]:
        with self._phases.timed(COPIES):
            specs, nbytes = self._pack(sets)
        batch = Batch(token="", region_bytes=nbytes, calls=tuple(specs), expected=self._expected)
        shapes = {tuple((name, one.dtype, one.size, one.stride) for name, one in sorted(spec.tensors.items())) for spec in specs}
        patience = limits.later() if shapes <= self._shapes else limits.first()
        used = self._process.cpu_ns()
        with self._phases.timed(self._names[self.calls > 0]):
            answer, wall_s = self._process.ask(batch, BatchDone, doing=doing, patience=patience)
        self._shapes |= shapes
        cpu_s = (self._process.cpu_ns() - used) / 1e9
        self.calls += len(sets)
        try:
            if len(answer.calls) != len(sets):
                raise ProtocolError(f"{len(answer.calls)} results of {len(sets)} calls")
            new_bytes = sum(_packed(one) for done in answer.calls for one in done.outputs or () if one.arena < 0)
        except ProtocolError as error:
            raise CandidateError(EvaluationStatus.HACKED, f"during {doing}: {error}") from error
        marks = self._process.marks
        inner_s = marks[1] - marks[0] if len(marks) == 2 else None
        spans = tuple(done.span_ns for done in answer.calls)
        times = BatchTimes(
            spans_ns=spans,
            wall_s=wall_s,
            inner_s=inner_s,
            cpu_s=cpu_s,
            calls_cpu_s=answer.calls_cpu_ns / 1e9,
            others_cpu_s=answer.others_cpu_ns / 1e9,
            new_bytes=new_bytes,
            late_share=answer.late_share,
            untimed=answer.untimed,
            late_calls=answer.late_calls,
        )
        return specs, answer, times

    def _inspect(self, limits: Limits, doing: str) -> None:
        """Raise CandidateError (`hacked`) if the process says that something of the harness was replaced."""
        if self._process.confined:
            with self._phases.timed(INSPECT):
                found, _ = self._process.ask(Inspect(token=""), Inspected, doing=f"the inspection after {doing}", patience=limits.later())
            if found.tampering:
                raise CandidateError(EvaluationStatus.HACKED, f"{found.tampering} in the candidate's process")

    def _pack(self, sets: Sequence[Mapping[str, Any]]) -> tuple[list[CallSpec], int]:
        """Write every set's arenas into the shared memory; their descriptions, and the bytes that all take."""
        planned: list[dict[str, Any]] = []
        cursor = 0
        for keywords in sets:
            storages = _storages(keywords)
            arenas = []
            for storage in storages:
                arenas.append(ArenaSpec(cursor, storage.nbytes(), storage.data_ptr() % ALIGNMENT))
                cursor += _aligned(storage.nbytes())
            planned.append({"keywords": keywords, "storages": storages, "arenas": arenas, "output_start": cursor})
            cursor += _aligned(self._output_bytes)
        self._process.region.reserve(cursor)
        return [_call_spec(self._process.region, output_bytes=self._output_bytes, **plan) for plan in planned], cursor

    def _unpack(self, spec: CallSpec, done: CallDone, device: torch.device, number: int) -> Returned:
        region = self._process.region
        arenas = [region.bytes_at(one.start, one.nbytes).to(device, copy=True) for one in spec.arenas]
        outputs: list[torch.Tensor] = []
        start = spec.output_start
        for one in done.outputs or ():
            if not -1 <= one.arena < len(arenas):
                raise ProtocolError(f"an output in arena {one.arena} of {len(arenas)}")
            if one.arena >= 0:
                outputs.append(torch.empty(0, device=device))
                continue
            if any(n < 0 for n in one.size) or math.prod(max(n, 1) for n in one.size) > _MOST_ELEMENTS:
                raise ProtocolError(f"an output of size {one.size}")
            nbytes = _packed(one)
            if start + nbytes > spec.output_start + spec.output_bytes:
                # Larger than twice what is due: its shape says all there is to say.
                outputs.append(torch.empty(one.size, dtype=dtype_of(one.dtype), device="meta"))
                continue
            packed = region.bytes_at(start, nbytes).to(device, copy=True)
            outputs.append(packed.view(dtype_of(one.dtype)).view(one.size))
            start += _aligned(nbytes)
        return Returned(done, arenas, outputs, number)


def _call_spec(
    region: Region,
    *,
    keywords: Mapping[str, Any],
    storages: Sequence[torch.UntypedStorage],
    arenas: Sequence[ArenaSpec],
    output_start: int,
    output_bytes: int,
) -> CallSpec:
    numbers = {storage.data_ptr(): number for number, storage in enumerate(storages)}
    for arena, storage in zip(arenas, storages, strict=True):
        device = storage.device
        flat = torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (storage.nbytes(),), (1,))
        region.bytes_at(arena.start, arena.nbytes).copy_(flat)
    tensors = {
        name: spec_of(value, numbers[value.untyped_storage().data_ptr()])
        for name, value in keywords.items()
        if isinstance(value, torch.Tensor)
    }
    options = {name: value for name, value in keywords.items() if not isinstance(value, torch.Tensor)}
    return CallSpec(arenas=tuple(arenas), tensors=tensors, options=options, output_start=output_start, output_bytes=output_bytes)


def _take_over(storage: torch.UntypedStorage, memory: torch.Tensor) -> None:
    """Change those words of `storage` that differ from `memory`, and write to no other: the gate may have protected them."""
    flat = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(storage, 0, (storage.nbytes(),), (1,))
    now, new = flat.view(torch.int64), memory.view(torch.int64)
    changed = (now != new).nonzero().flatten()
    if not changed.numel():
        return
    first, last = int(changed[0]), int(changed[-1]) + 1
    if changed.numel() == last - first:
        now[first:last].copy_(new[first:last])
    else:
        now[changed] = new[changed]


def _storages(keywords: Mapping[str, Any]) -> list[torch.UntypedStorage]:
    """The distinct storages of the tensor arguments, in the order of the arguments' names."""
    found: dict[int, torch.UntypedStorage] = {}
    for _, value in sorted(keywords.items()):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found.setdefault(storage.data_ptr(), storage)
    return list(found.values())


def _packed(spec: TensorSpec) -> int:
    """Bytes of the tensor without gaps."""
    count = dtype_of(spec.dtype).itemsize
    for n in spec.size:
        count *= n
    return count


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
