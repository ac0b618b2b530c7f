"""Where a run's time goes: a stopwatch by phase, and by kernel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..schema import Spending

CHECK = "accuracy checks"
"""The phase that the gate's time goes to; the phases of timing are named in `timing.measure`."""
START = "start of further processes"
"""The phase in which processes beyond the first import torch and the kernels, and start the profiler."""


class PhaseTimer:
    """Adds up seconds, from several threads; `spending` may be taken at any time."""

    def __init__(self, earlier: Spending | None = None) -> None:
        """`earlier`: what a run that this one goes on with had spent."""
        before = earlier if earlier is not None else Spending(total_s=0.0)
        self._started = time.monotonic() - before.total_s
        self._phases: Counter[str] = Counter(before.phases_s)
        self._kernels: Counter[str] = Counter(before.kernels_s)

    def add(self, phases: Mapping[str, float], kernels: Mapping[str, float] | None = None) -> None:
        """Add seconds by phase, and those of them that are one kernel's own."""
        self._phases.update(phases)
        self._kernels.update(kernels or {})

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add what the block takes to `phase`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - began})

    def spending(self) -> Spending:
        return Spending(
            total_s=time.monotonic() - self._started,
            phases_s=dict(self._phases.most_common()),
            kernels_s=dict(self._kernels.most_common()),
        )
