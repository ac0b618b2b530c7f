"""The clock of a batch on a GPU: CUPTI's activity records through torch's profiler, the cache emptied before every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..accuracy.poison import poisoned
from ..errors import TimerError
from ..schema import CacheState
from ..timing.arm import Arm, CallTiming
from ..timing.attribution import attribute
from ..timing.cuda_events import CudaEventTimer
from ..timing.cupti import CuptiTimer, start_profiler
from ..timing.preparation import Preparation

UNTIMED = (0, 0)
"""The timing of a call whose records were lost."""
_HOST_US = 100.0
"""Host time of a call that the head start is made for (`timing.preparation`): a chain of some fifteen launches takes no more."""


class CudaClock:
    """Times calls on one GPU; made before a candidate is loaded."""

    def __init__(self, device: torch.device, *, timed: bool) -> None:
        """`timed`: whether to time at all.  Where the profiler does not start in this process, CUDA's events replace it."""
        self._device = device
        self._timer: CuptiTimer | CudaEventTimer | None = None
        self._prepare = Preparation(device, CacheState.COLD)
        self._synchronize = torch.cuda.synchronize
        self.fallback = ""
        """Why the timer is not CUPTI; empty if it is, or if nothing is timed."""
        self.problem = ""
        """Why the last batch has no times: work by another thread, calls that launch nothing, or lost records; empty if it has."""
        if timed:
            self._timer = CuptiTimer()
            try:
                start_profiler(device)
            except Exception as error:  # noqa: BLE001  torch's own errors, of many kinds
                self._timer = CudaEventTimer()
                self.fallback = f"the profiler does not start in the confined process ({type(error).__name__}: {error})"
            self._prepare.give_head_start({"call": _HOST_US})

    @property
    def name(self) -> str:
        """Name of the timer; empty if nothing is timed."""
        return self._timer.name if self._timer is not None else ""

    def time(self, calls: Sequence[tuple[Callable[[], None], Sequence[torch.Tensor]]], mark: Callable[[], None]) -> list[tuple[int, int]]:
        """Span in nanoseconds and launches of each call; every stream has finished when this returns.

        Args:
            calls: each with tensors like those that it is expected to allocate.
            mark: called before the first call, and once all of them are through.

        Raises:
            Exception: any error of the kernel.
        """
        last = calls[-1][0]

        def ending() -> None:
            last()
            self._synchronize(self._device)
            mark()

        arms = [Arm("call", call, lambda: None) for call, _ in calls[:-1]] + [Arm("call", ending, lambda: None)]
        likes = iter([like for _, like in calls])
        waiting = [mark]

        def prepare(arm: Arm) -> None:
            with poisoned(next(likes), intercept=False):
                pass
            if waiting:
                self._synchronize(self._device)
                waiting.pop()()
            self._prepare(arm)

        self.problem = ""
        timed: list[CallTiming]
        if self._timer is None:
            for arm in arms:
                prepare(arm)
                arm.call()
            return [UNTIMED] * len(arms)
        if isinstance(self._timer, CudaEventTimer):
            timed = self._timer.time_calls(arms, prepare)
        else:
            events: list[Any] = self._timer.record(arms, prepare)
            try:
                timed = attribute(events, [arm.name for arm in arms])
            except TimerError as error:
                self.problem = str(error)
                return [UNTIMED] * len(arms)
        self._synchronize(self._device)
        return [(timing.span_ns, timing.kernels) for timing in timed]
