"""What precedes every timed call: inputs restored, the host given a head start, the cache emptied, in that order.

The head start: while the GPU is busy with something that is not timed, the host queues the whole call, so that gaps inside a chain of
launches are the GPU's own.  Emptying the cache keeps it busy for some time already (66 us on an H200); it spins for what is missing.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ..schema import CacheState, Sample
from .arm import Arm
from .cache import make_evictor
from .spin import spin

if TYPE_CHECKING:
    import torch

CHAIN_FACTOR = 4.0
"""A chain of launches takes the host up to four times as long while the profiler watches it as it usually does (seen on an H200: 3.9)."""
SINGLE_FACTOR = 2.0
"""One launch has no gap inside, however late the host makes it: the GPU should merely not idle for long before it."""
SPIN_LIMIT_US = 4000.0
EVICTIONS = 9


class Preparation:
    """Called with an arm before each of its timed calls."""

    def __init__(self, device: torch.device, cache: CacheState) -> None:
        self._on_gpu = device.type == "cuda"
        self._cold = cache is CacheState.COLD
        self.evict: Callable[[], None] = make_evictor(device) if self._cold else lambda: None
        self._host_us: Mapping[str, float] = {}
        self._eviction_us = 0.0
        self._launches: dict[str, int] = {}

    def give_head_start(self, host_us: Mapping[str, float]) -> None:
        """From now on, by what a call of each arm costs the host (microseconds); on a CPU, where the host is the device, there is none."""
        if self._on_gpu:
            self._host_us = host_us
            self._eviction_us = _eviction_us(self.evict) if self._cold else 0.0

    def learn(self, samples: Iterable[Sample]) -> None:
        """Take in how many launches a call of each arm makes; an arm of which that is not known (0, or never seen) counts as a chain."""
        for sample in samples:
            self._launches[sample.arm] = sample.kernels

    def spin_us(self, arm: str) -> float:
        """How long the GPU spins before it empties the cache for a call of this arm (microseconds)."""
        factor = SINGLE_FACTOR if self._launches.get(arm) == 1 else CHAIN_FACTOR
        return max(0.0, min(SPIN_LIMIT_US, factor * self._host_us.get(arm, 0.0) - self._eviction_us))

    def __call__(self, arm: Arm) -> None:
        arm.restore()
        if self._on_gpu:
            spin(self.spin_us(arm.name))
        self.evict()


def _eviction_us(evict: Callable[[], None]) -> float:
    """How long `evict` keeps the current device busy: the median of some, by CUDA events."""
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(EVICTIONS + 1)]  # type: ignore[no-untyped-call]
    spin(1000.0)  # the host queues all of them meanwhile
    for mark in marks:
        mark.record()
        evict()
    torch.cuda.synchronize()
    return statistics.median(1e3 * float(before.elapsed_time(after)) for before, after in itertools.pairwise(marks))
