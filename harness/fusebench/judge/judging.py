"""One case of one candidate: the accuracy gate through a proxy, further calls that are compared, and times beside the baseline's."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch

from ..accuracy.gate import check_kernel
from ..errors import KernelDeclarationError
from ..registry import Collection, Kernel, Op
from ..registry.kernel import reason_not_runnable
from ..registry.launching import interpreting
from ..schema import Accuracy, Close, Contract, KernelId, Language, Role
from ..schema.evaluation import EvaluationStatus
from .comparing import Call, Comparison, named
from .crosscheck import COPY_BYTES_PER_US, BatchPair, CpuPair, TimedBatches
from .exchange import BatchTimes, Exchange, Returned
from .failures import CandidateError
from .patience import Limits
from .phases import COMPARE, DRAW
from .process import KernelProcess
from .stages import LEAST_OWN, MOST_CALLS

_MOST_BESIDE = 3
"""Calls beside the gate's one in a batch, drawn from 0 to this."""
_BATCH_CALLS = 12
"""Calls of a batch that only compares."""
_BATCH_BYTES = 2**29
"""Bytes that the calls of one batch may move together."""
_CASE_BYTES = 2**31
"""Bytes that the calls of one case which only compare may move together; small cases have all the calls that find a flaky kernel."""
_ALONE = 3
"""Batches of the baseline alone, of each kind."""
_ALONE_CALLS = 2
"""Calls of such a batch of several."""
_GUARDS_BYTES = 2**20
"""Of one call, roughly."""


@dataclass
class CaseJudgement:
    """What was found on one case."""

    accuracy: Accuracy | None = None
    single: TimedBatches = field(default_factory=TimedBatches)
    """Batches of one call."""
    several: TimedBatches = field(default_factory=TimedBatches)
    """Batches of more; empty where a call is so large that each batch has one."""
    late_shares: list[float] = field(default_factory=list)
    calls: int = 0
    compared: int = 0

    @property
    def timed(self) -> tuple[TimedBatches, ...]:
        """The kinds of batches that were made."""
        return tuple(one for one in (self.single, self.several) if one.untimed or one.late)


def capped(contract: Contract, collection: Collection, op: Op, params: Any, device: torch.device) -> tuple[Contract, Kernel | None]:
    """The contract that the candidate is held to, and the project's kernel that a bitwise one names.

    Raises:
        CandidateError: it promises to equal a kernel that the project lacks, that cannot run on `device`, or that declines the case.
    """
    if isinstance(contract, Close):
        return Close(contract.factor if 0 < contract.factor <= op.largest_factor else op.largest_factor), None
    if contract.to not in collection.kernels:
        raise CandidateError(
            EvaluationStatus.INVALID, f"it promises to equal {contract.to[:100]!r} bit for bit, which is no kernel of the project"
        )
    target = collection.prepared(contract.to)
    if reason := target.reason_unsupported(params):
        raise CandidateError(EvaluationStatus.INVALID, f"it promises to equal {contract.to} bit for bit, which declines the case: {reason}")
    if reason := reason_not_runnable(target, device.type, interpreter=interpreting()):
        raise CandidateError(EvaluationStatus.INVALID, f"it promises to equal {contract.to} bit for bit, which cannot run here: {reason}")
    return contract, target


class CaseJudge:
    """Judges one case in one candidate's process."""

    def __init__(
        self,
        process: KernelProcess,
        op: Op,
        params: Any,
        *,
        kernel: str,
        language: str,
        contract: Contract,
        split: Kernel,
        target: Kernel | None,
        device: torch.device,
        limits: Limits,
        takes: Callable[[Any], bool | str] = lambda params: True,
    ) -> None:
        """`takes`: asks the candidate whether it supports other parameters of the case (`Op.variant`)."""
        self._op, self._params, self._split, self._device, self._limits = op, params, split, device, limits
        self._target = target
        self.proxy = Kernel(
            self._proxied, KernelId.parse(kernel), role=Role.FUSED, language=Language(language), contract=contract, requires=(), note=""
        )
        self.proxy.op = op
        self.proxy.supports(takes)
        self._comparison = Comparison(
            self.proxy, op, params, split=split, target=target, contract=contract, device=device, phases=limits.phases
        )
        self.expected = self._comparison.expected()
        """Outputs of the split chain, for shapes and dtypes."""
        self._exchange = Exchange(process, self.expected, phases=limits.phases)
        self._rng = random.Random(secrets.randbits(128))
        self._call_bytes = op.minimum_bytes(params) + _GUARDS_BYTES
        self._most = max(1, _BATCH_BYTES // self._call_bytes)
        self._wanted = 0
        """Calls that will be compared."""
        self.found = CaseJudgement()

    def check(self, wanted: int = 0) -> None:
        """The accuracy gate.

        Args:
            wanted: calls that will be compared, its own among them; on a GPU they are drawn while the first ones are compiled.

        Raises:
            CandidateError: the candidate is wrong, or failed.
        """
        self._wanted = wanted
        others = {} if self._target is None else {str(self._target.id): self._target}
        phases = self._limits.phases
        try:
            with phases.timed(COMPARE):
                accuracy = check_kernel(
                    self.proxy,
                    self._op,
                    self._params,
                    split=self._split,
                    others=others,
                    device=self._device,
                    on_draw=lambda done, total: self._limits.require_time(),
                    timed=partial(phases.timed, DRAW),
                )
        except KernelDeclarationError as error:
            raise CandidateError(EvaluationStatus.INVALID, str(error)) from error
        self.found.accuracy = msgspec.structs.replace(accuracy, seed=0)
        if not accuracy.passed:
            raise CandidateError(EvaluationStatus.WRONG, accuracy.reason)

    def compare(self, least: int, until: float = float("inf")) -> None:
        """Further batches, until `least` calls were compared, or `until` has passed and `LEAST_OWN` were.

        Raises:
            CandidateError: a call was wrong, or the candidate failed.
        """
        least = self._wanted = min(least, _CASE_BYTES // self._call_bytes)
        while self.found.compared < least:
            if self.found.compared >= LEAST_OWN and time.monotonic() > until:
                break
            self._limits.require_time()
            count = min(self._rng.randint(1, _BATCH_CALLS), self._most, least - self.found.compared)
            self._run(self._comparison.some(count))
        self._comparison.settle()

    def time(self, baseline: Exchange, pairs: int, until: float) -> None:
        """Batches by the candidate and the baseline on the same values, in balanced order, at most until `until`.

        Raises:
            CandidateError: a timed call was wrong, or the candidate failed.
        """
        if self._device.type == "cuda":
            self._time_alone(baseline)
        self._pair(baseline, TimedBatches(), self._several(), candidate_first=True)  # the first timed batch of both, which warms up
        found = self.found
        for number in range(pairs):
            if number > 1 and all(len(one.pairs) >= 3 for one in found.timed) and time.monotonic() > until:
                break
            self._limits.require_time()
            count = 1 if number % 2 == 0 else self._several()
            self._pair(baseline, found.single if count == 1 else found.several, count, candidate_first=number % 4 in (0, 3))
        self._comparison.settle()

    def _several(self) -> int:
        return min(self._rng.randint(2, MOST_CALLS), self._most)

    def _time_alone(self, baseline: Exchange) -> None:
        self._by_baseline(baseline, self._comparison.some(1, timed=True))  # warms up
        kinds = [(self.found.single, 1)] + [(self.found.several, _ALONE_CALLS)] * (self._most >= _ALONE_CALLS)
        for timed, count in kinds * _ALONE:
            times = self._by_baseline(baseline, self._comparison.some(count, timed=True))
            if not times.untimed and not times.late_calls:
                timed.alone_us.append(_per_call(times, 0.0)[0])

    def _by_baseline(self, baseline: Exchange, calls: Sequence[Call]) -> BatchTimes:
        try:
            return baseline.time([call.arguments for call in calls], limits=self._limits, doing="the split chain's calls")
        except CandidateError as error:
            if error.status is EvaluationStatus.UNDECIDED:
                raise
            raise CandidateError(EvaluationStatus.UNFIT, f"the project's own split chain failed: {error.reason}") from error

    def _pair(self, baseline: Exchange, timed: TimedBatches, count: int, *, candidate_first: bool) -> None:
        calls = self._comparison.some(count, timed=True)
        if candidate_first:
            own, other = self._run(calls), self._by_baseline(baseline, calls)
        else:
            other, own = self._by_baseline(baseline, calls), self._run(calls)
        if other.late_calls:
            timed.late += 1
            return
        untimed = own.untimed or other.untimed
        timed.untimed.append(untimed)
        if not untimed:
            extra_us = max(0, own.new_bytes - other.new_bytes) / COPY_BYTES_PER_US[self._device.type]
            timed.pairs.append(BatchPair(*_per_call(own, extra_us), *_per_call(other, 0.0)))
            if self._device.type == "cpu":
                beyond = own.cpu_s * 1e6 - extra_us - _claimed_us(own)
                harness = (other.cpu_s - other.calls_cpu_s) * 1e6
                timed.outside.append(CpuPair(beyond / count, harness / count, own.others_cpu_s * 1e6 / count))

    def _run(self, calls: list[Call]) -> BatchTimes:
        returned, times = self._made([call.arguments for call in calls])
        for call, one in zip(calls, returned, strict=True):
            self._comparison.judge(call, one)
            self.found.compared += 1
        return times

    def _made(self, sets: Sequence[Mapping[str, Any]]) -> tuple[list[Returned], BatchTimes]:
        """What the candidate's calls on `sets` returned."""
        ahead = self._wanted - self.found.compared - len(sets) if self._exchange.calls == 0 and self._device.type == "cuda" else 0
        with self._comparison.drawing_ahead(min(ahead, self._most)) if ahead > 0 else nullcontext():
            returned, times = self._exchange.run(sets, limits=self._limits, doing=f"{len(sets)} calls")
        self.found.calls += len(sets)
        self.found.late_shares.append(times.late_share)
        self._limits.learn(times.wall_s)
        return returned, times

    def _proxied(self, *values: Any, **options: Any) -> Any:
        """The gate's call, at a random place among others, so that the candidate cannot tell which it is."""
        keywords = named(self._op, values, options)
        beside = self._comparison.some(min(self._rng.randint(0, _MOST_BESIDE), self._most - 1))
        place = self._rng.randint(0, len(beside))
        sets: list[Mapping[str, Any]] = [call.arguments for call in beside]
        sets.insert(place, keywords)
        returned, _ = self._made(sets)
        own = returned.pop(place)
        for call, one in zip(beside, returned, strict=True):
            self._comparison.judge(call, one)
        self.found.compared += len(sets)
        return own.deliver(keywords)


def _claimed_us(times: BatchTimes) -> float:
    """Time of the batch's calls by the process's own clock: more than their CPU time where a call waited, which then hides less."""
    return sum(times.spans_ns) / 1e3


def _per_call(times: BatchTimes, extra_us: float) -> tuple[float, float]:
    """The process's own clock and the judge's, in microseconds per call; `extra_us` of the batch are granted for copies."""
    count = len(times.spans_ns)
    wall_us = 1e6 * (times.inner_s if times.inner_s is not None else times.wall_s) - extra_us
    return max(1, sum(times.spans_ns)) / 1e3 / count, wall_us / count
