"""The figures of one case: samples, host cost, extra memory, and the time spent on measuring them."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..clock import now_ns
from ..schema import Floor, Sample
from .arm import Arm
from .coldness import Coldness
from .pairs import Compared
from .replicate import TimedRounds

if TYPE_CHECKING:
    import torch

BETWEEN = "between the phases of measurements"
"""The phase for time outside all others, so that the phases sum up to `seconds`."""
HOST_CALLS = 30
"""Calls whose median is the host cost; few enough that the launch queue (1024 entries) never fills and blocks the host."""


@dataclass
class CaseTimings:
    """The measurements of one case."""

    samples: list[Sample] = field(default_factory=list)
    host_us: dict[str, float] = field(default_factory=dict)
    """Host cost per call in microseconds, by arm; empty on a CPU."""
    extra_memory_bytes: dict[str, int] = field(default_factory=dict)
    coldness: Coldness | None = None
    """The proof that the eviction works; None for warm samples and on a CPU."""
    floor: Floor | None = None
    """The time below which no cold call can come (`timing.floor`); None for warm samples and on a CPU."""
    timer_retries: int = 0
    """Repeats after a failure of the timer (lost records, for example): of a replicate, its repeated rounds or the proof of cold."""
    repeated_rounds: int = 0
    """Rounds timed again because the host was late inside a call (`timing.replicate`)."""
    late_calls: Counter[str] = field(default_factory=Counter)
    """By arm, its samples from calls that still waited for the host."""
    seconds: float = 0.0
    cut_short: bool = False
    """Whether the deadline ended the case before all its replicates, or before its pairs were decided."""
    wrong: dict[str, str] = field(default_factory=dict)
    """By arm, why the outputs of a timed call were wrong: its times are those of other work."""
    suspicious: dict[str, str] = field(default_factory=dict)
    """By arm, why its times are not believed, although its outputs were right."""
    unverified: str = ""
    """Why no output of a timed call was compared; empty if some were, or none should be."""
    outputs_compared: int = 0
    """Timed calls whose outputs were compared."""
    outside_calls: Counter[str] = field(default_factory=Counter)
    """By arm, its samples with work that another thread or no call had launched."""
    compared: dict[str, Compared] = field(default_factory=dict)
    """By name, the pairs that were judged."""
    phases_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """`seconds` by phase."""
    first_call_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each arm's first call, compilation included."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's duration to phase `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] += time.monotonic() - began

    def take_in(self, case_key: str, replicate: int, timed: TimedRounds) -> list[Sample]:
        """Keep the samples of a replicate and add up its repeats.  Returns its samples."""
        taken = _samples(case_key, replicate, timed)
        self.samples += taken
        self.timer_retries += timed.retries
        self.repeated_rounds += timed.repeated_rounds
        self.late_calls += timed.late_calls
        self.outside_calls += timed.outside_calls
        return taken

    def finish(self, started: float) -> None:
        """Close the phases of a measurement that began at `started` (of `time.monotonic`)."""
        self.seconds = time.monotonic() - started
        self.phases_s[BETWEEN] += self.seconds - sum(self.phases_s.values())


def host_cost_us(arm: Arm) -> float:
    """Median host time until `arm.call` returns on an idle GPU, in microseconds; the work is queued, not awaited.

    Inputs are restored once, and not copied anew for every call: what the host does to launch a call depends on no value.
    """
    import torch

    costs = []
    arm.restore()
    for _ in range(HOST_CALLS):
        start = now_ns()
        arm.call()
        costs.append((now_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return statistics.median(costs)


def extra_memory_bytes(arm: Arm, device: torch.device) -> int:
    """Peak device memory in bytes that one call allocates beyond the memory in use before it."""
    import torch

    arm.restore()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = arm.call()  # a call's results count as its memory
    peak = torch.cuda.max_memory_allocated(device)
    del kept
    return int(peak - before)


def _samples(case_key: str, replicate: int, timed: TimedRounds) -> list[Sample]:
    return [
        Sample(
            case=case_key,
            arm=arm.name,
            replicate=replicate,
            round=number,
            position=position,
            span_ns=timing.span_ns,
            busy_ns=timing.busy_ns,
            kernels=timing.kernels,
        )
        for number, (order, timings) in enumerate(zip(timed.rounds, timed.timings, strict=True))
        for position, (arm, timing) in enumerate(zip(order, timings, strict=True))
    ]
