"""The clock of a batch on a GPU: CUPTI's activity records through torch's profiler, the cache emptied before every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..accuracy.poison import poisoned
from ..errors import TimerError
from ..schema import CacheState
from ..timing.arm import Arm
from ..timing.attribution import attribute
from ..timing.cupti import CuptiTimer, start_profiler
from ..timing.preparation import Preparation

UNTIMED = (0, 0)
"""The timing of a call whose records were lost."""
_HOST_US = 400.0
"""Head start per call under the profiler, which a chain of some fifteen launches needs (`timing.preparation`)."""


class CudaClock:
    """Times calls on one GPU."""

    def __init__(self, device: torch.device, *, timed: bool) -> None:
        self._device = device
        self._timer = CuptiTimer() if timed else None
        self._prepare = Preparation(device, CacheState.COLD)
        self._synchronize = torch.cuda.synchronize
        self.problem = ""
        """Why the last batch has no times: work by another thread, calls that launch nothing, or lost records; empty if it has."""
        if timed:
            start_profiler(device)
            self._prepare.give_head_start({"call": _HOST_US / 4})

    def time(self, calls: Sequence[tuple[Callable[[], None], Sequence[torch.Tensor]]]) -> list[tuple[int, int]]:
        """Span in nanoseconds and launches of each call; every stream has finished when this returns.

        Raises:
            Exception: any error of the kernel.
        """
        arms = [Arm("call", call, lambda: None) for call, _ in calls]
        likes = iter([like for _, like in calls])

        def prepare(arm: Arm) -> None:
            with poisoned(next(likes), intercept=False):
                pass
            self._prepare(arm)

        if self._timer is None:
            for arm in arms:
                prepare(arm)
                arm.call()
            self._synchronize(self._device)
            return [UNTIMED] * len(arms)
        events: list[Any] = self._timer.record(arms, prepare)
        self._synchronize(self._device)
        try:
            timed = [(timing.span_ns, timing.kernels) for timing in attribute(events, [arm.name for arm in arms])]
        except TimerError as error:
            self.problem = str(error)
            return [UNTIMED] * len(arms)
        self.problem = ""
        return timed
