"""Verifies the timed calls of a case: their outputs, work that they leave running, and their times against the wall time of a burst.

Everything here happens after the clock of a call has stopped.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..clock import now_ns, worked_ns
from ..registry.calling import without_garbage_collection
from ..schema import Sample
from .arm import Arm
from .case_timings import CaseTimings
from .preparation import launch_spin
from .values import FreshValues
from .watch import Watch, Watcher

if TYPE_CHECKING:
    import torch

    from ..accuracy.timed_outputs import TimedOutputs

SMALL_OUTPUTS = 1 << 20
"""Elements of all inputs up to which two calls of an arm are judged, each on inputs of its own; of larger ones one call is."""
BURST_CALLS = 8
"""Most calls of a burst."""
BURST_US = 2000.0
"""A burst of longer calls than a `BURST_CALLS`-th of this has fewer of them, at least two."""
BURSTS = 3
"""The fastest of several bursts counts: other processes only make one slower."""
MOST_ATTEMPTS = 5
"""As many times bursts are repeated where they contradict a claim, before the claim is not believed."""
BURST_SHARE = 0.5
"""A call that claims less than this share of its time in a burst is not believed.  A burst finds its data in the cache and a timed call
does not, so that an honest call claims more than all of it."""
BURST_SLACK_US = 25.0
"""Difference below which a burst contradicts no claim: what the host adds to the whole burst is more than that."""
SPIN_LIMIT_US = 4000.0


class Verification:
    """The verification of one case in one process."""

    def __init__(self, outputs: TimedOutputs | None, values: Mapping[str, Any], device: torch.device, seed: int) -> None:
        """`outputs`: the judge of outputs; None for a measurement that verifies nothing."""
        self._outputs, self._device = outputs, device
        self._common = values if isinstance(values, FreshValues) else None
        elements = sum(value.numel() for value in values.values())
        self._watcher = Watcher(random.Random(f"watch {seed}"), 2 if elements <= SMALL_OUTPUTS else 1)
        self._bursts_us: dict[str, float] = {}

    def choose(self, watches: Mapping[str, Watch], arms: Sequence[Arm], rounds: int) -> None:
        """Choose the calls of the next replicate to be judged."""
        if self._common is not None:
            timed = {arm.name: watches[arm.name] for arm in arms if arm.name in watches}
            self._watcher.choose(timed, self._common, rounds)

    def collect(self, watches: Mapping[str, Watch], arms: Sequence[Arm], host_us: Mapping[str, float], taken: Sequence[Sample]) -> None:
        """Take over the copies of a replicate with the samples `taken`, and time bursts of each arm, once per process."""
        if self._common is None:
            return
        self._watcher.collect(watches)
        claimed = _claimed_us(taken)
        for arm in arms:
            if arm.name in watches and arm.name not in self._bursts_us and arm.name in claimed:
                self._bursts_us[arm.name] = self._burst_us(arm, claimed[arm.name], host_us.get(arm.name, 0.0))

    def _burst_us(self, arm: Arm, claimed_us: float, host_us: float) -> float:
        calls = int(max(2, min(BURST_CALLS, BURST_US / max(claimed_us, 1e-3))))
        fastest = burst_us(arm, self._device, calls, host_us)
        for _ in range(MOST_ATTEMPTS):
            if not contradicts(claimed_us, fastest):
                break
            fastest = min(fastest, burst_us(arm, self._device, calls, host_us))
        return fastest

    def finish(self, timings: CaseTimings) -> None:
        """Judge the copies, and hold each arm's times against its burst."""
        if self._outputs is None:
            return
        import torch

        kept = {arm: list(calls.values()) for arm, calls in self._watcher.kept.items()}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            timings.wrong = self._outputs.judge(kept)
            timings.outputs_compared = sum(len(calls) for calls in kept.values())
        except torch.OutOfMemoryError:
            timings.unverified = "too little memory is left for the reference of its inputs"
        timings.suspicious = dict(self._watcher.left_running)
        for arm, count in timings.outside_calls.items():
            timings.suspicious.setdefault(arm, f"in {count} timed calls, device work was launched after the call had returned")
        claimed = _claimed_us(timings.samples)
        for arm, burst in self._bursts_us.items():
            if contradicts(claimed[arm], burst):
                timings.suspicious.setdefault(
                    arm,
                    f"a timed call takes {claimed[arm]:.1f} us by its timer, and {burst:.1f} us in a burst by the host's clock",
                )


def _claimed_us(samples: Sequence[Sample]) -> dict[str, float]:
    """The median span of each arm in microseconds."""
    spans: dict[str, list[int]] = defaultdict(list)
    for sample in samples:
        spans[sample.arm].append(sample.span_ns)
    return {arm: median(found) / 1e3 for arm, found in spans.items()}


def contradicts(claimed_us: float, burst_us: float) -> bool:
    """Whether a call's wall time in a burst contradicts the time that its timer claims; a burst of 0 says nothing."""
    return claimed_us < BURST_SHARE * burst_us and burst_us - claimed_us > BURST_SLACK_US


def burst_us(arm: Arm, device: torch.device, calls: int, host_us: float) -> float:
    """Time per call of the fastest burst, in microseconds, by the clocks bound before the kernels; 0 where it would be the host's.

    On a GPU it is wall time until the whole device has done all work: the calls are queued behind a spin, whose wall time is subtracted.
    On a CPU it is the processor time of the calling thread, because wall time counts what other programs do there: on two cores that ten
    processes shared, wall time contradicted 9 of some 1400 honest claims.
    """
    with without_garbage_collection():
        if device.type != "cuda":
            return min(_host_burst_us(arm, calls) for _ in range(BURSTS))
        return min(_device_burst_us(arm, device, calls, host_us) for _ in range(BURSTS))


def _host_burst_us(arm: Arm, calls: int) -> float:
    arm.restore()
    start = worked_ns()
    for _ in range(calls):
        arm.call()
    return (worked_ns() - start) / 1e3 / calls


def _device_burst_us(arm: Arm, device: torch.device, calls: int, host_us: float) -> float:
    import torch

    spin = 2.0 * calls * host_us + 50.0
    if spin > SPIN_LIMIT_US:
        return 0.0

    def wall_us(count: int) -> tuple[float, float]:
        """Wall time of a spin and so many calls, and the part of it in which the host queued them."""
        torch.cuda.synchronize(device)
        start = now_ns()
        launch_spin(spin)
        for _ in range(count):
            arm.call()
        queued = now_ns()
        torch.cuda.synchronize(device)
        return (now_ns() - start) / 1e3, (queued - start) / 1e3

    arm.restore()
    alone, _ = wall_us(0)
    whole, queued = wall_us(calls)
    if queued > 0.8 * alone:  # the device waited for the host
        return 0.0
    return max(0.0, whole - alone) / calls
