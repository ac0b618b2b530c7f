"""The clock of a batch on a GPU: CUPTI's activity records through torch's profiler, the cache emptied before every call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...accuracy.poison import poisoned
from ...errors import TimerError
from ...schema import CacheState
from ...timing.arm import Arm, CallTiming
from ...timing.preparation import Preparation, spin
from ...timing.timers.attribution import attribute
from ...timing.timers.cuda_events import CudaEventTimer
from ...timing.timers.cupti import CuptiTimer, start_profiler

UNTIMED = (0, 0)
"""The timing of a call whose records were lost."""
_FILL_US = 100.0
"""Least time that the device spins before inputs are written, also where nothing is timed: work on another stream reads other values."""
_HOST_US = 500.0
"""Host time of a call that the head start is made for (`timing.preparation`).  It must be the same in every process, because the judge
compares wall times.  On an H100's host, split chains of 5 us waited for the host where it was made for 100 us: calls of two launches took
30 to 240 us."""
_FIRST_US = 1000.0
"""The same for the first call of a batch: the process was asleep until then."""
_FIRST, _CALL, _FINISH = "first call", "call", "finish"


class DeviceCall(NamedTuple):
    """A call with what goes before it and after it."""

    call: Callable[[], None]
    fill: Callable[[], None]
    """Writes its inputs."""
    keep: Callable[[], None]
    """Copies what it left."""


class CudaClock:
    """Times calls on one GPU; made before a candidate is loaded."""

    def __init__(self, device: torch.device, *, timed: bool) -> None:
        """`timed`: whether to time at all.  Where the profiler does not start in this process, CUDA's events replace it."""
        self._device = device
        self._timer: CuptiTimer | CudaEventTimer | None = None
        self._prepare = Preparation(device, CacheState.COLD, {_FIRST: _CALL})
        self._synchronize = torch.cuda.synchronize
        self._word = torch.zeros(1, device=device)
        self.fallback = ""
        """Why the timer is not CUPTI; empty if it is, or if nothing is timed."""
        self.problem = ""
        """Why the last batch has no times: work by another thread, calls that launch nothing, or lost records; empty if it has."""
        self.late_calls = 0
        """Calls of the last batch in which the device waited for the host."""
        if timed:
            self._timer = CuptiTimer()
            try:
                start_profiler(device)
            except Exception as error:  # noqa: BLE001  torch's own errors, of many kinds
                self._timer = CudaEventTimer()
                self.fallback = f"the profiler does not start in the confined process ({type(error).__name__}: {error})"
            self._prepare.give_head_start({_FIRST: _FIRST_US, _CALL: _HOST_US})

    @property
    def name(self) -> str:
        """Name of the timer; empty if nothing is timed."""
        return self._timer.name if self._timer is not None else ""

    def time(self, calls: Sequence[DeviceCall], like: Sequence[torch.Tensor], mark: Callable[[], None]) -> list[tuple[int, int]]:
        """Span in nanoseconds and launches of each call; every stream has finished when this returns.

        The device spins first, then inputs are written on the current stream, then the cache is emptied.  So the host is ahead by the time
        of the call, and nothing can read the inputs while the device spins.  Results are copied on that stream just after the call: a
        kernel whose own streams do not wait for it, or are not waited for, reads and leaves the wrong values.

        Args:
            like: tensors like those that a call is expected to allocate.
            mark: called before the first call, and once all of them are through.

        Raises:
            Exception: any error of the kernel.
        """

        def finish() -> None:
            self._word.add_(1)
            self._synchronize(self._device)
            mark()

        arms = [Arm(_CALL if number else _FIRST, one.call, lambda: None) for number, one in enumerate(calls)]
        arms.append(Arm(_FINISH, finish, lambda: None))
        numbers = itertools.count()

        def prepare(arm: Arm) -> None:
            number = next(numbers)
            if number > 0:
                calls[number - 1].keep()
            if number == len(calls):
                return
            with poisoned(like, intercept=False):
                pass
            if number == 0:
                self._synchronize(self._device)
                mark()
            self._prepare.release(arm.name)  # waits for the device where lines persist in the L2, and with it for any spin before
            spin(max(_FILL_US, self._prepare.spin_us(arm.name)))
            calls[number].fill()
            self._prepare.evict()

        self.problem, self.late_calls = "", 0
        timed: list[CallTiming]
        if self._timer is None:
            for arm in arms:
                prepare(arm)
                arm.call()
            return [UNTIMED] * len(calls)
        if isinstance(self._timer, CudaEventTimer):
            timed = self._timer.time_calls(arms, prepare)
        else:
            events: list[Any] = self._timer.record(arms, prepare)
            try:
                timed = attribute(events, [arm.name for arm in arms])
            except TimerError as error:
                self.problem = str(error)
                return [UNTIMED] * len(calls)
        self.late_calls = sum(timing.late for timing in timed[:-1])
        return [(timing.span_ns, timing.kernels) for timing in timed[:-1]]
