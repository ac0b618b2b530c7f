"""Fallback timer on CUDA: a call captured in a graph, between two events that the graph records.

What must precede every call (inputs restored, cache emptied) is captured before the first event, so that a replay is one timed call.  The
host launches it whole: no gap inside of a chain of launches is the host's.  As with `timing.cuda_events`, the events add a constant to
whatever lies between them, hence a fallback, whose name is part of the result, and whose results are never compared with another timer's.

Not the difference between replays with the call and without, which would cancel that constant: a call leaves another cache than it found,
and what precedes the next one takes another time for it.  On an H200 a launch seemed faster by a sixth after the cache was emptied, which
makes it a third slower, and whatever held up the host between two launches made calls of less than no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ..errors import NotCapturableError, TimerError
from .arm import Arm, CallTiming
from .spin import launch_spin

SPIN_US = 20.0
"""How long a graph spins first, so that the first event finds a busy device where nothing else precedes the call, as it does elsewhere."""

Replay = Callable[[], float]


class Gpu(Protocol):
    """What the timer needs of a device."""

    def capture(self, before: Callable[[], object], timed: Callable[[], object]) -> Replay:
        """Record what both launch, one after the other, without running it.

        The result launches all of it once, waits for it, and returns how long `timed` took, in nanoseconds.
        """
        ...


class CudaGraphTimer:
    """Times calls by replays of their graphs.

    Raises NotCapturableError for a call that no graph can hold, TimerError for one that took no time.
    """

    name = "cuda_graph"

    def __init__(self, gpu: Gpu | None = None) -> None:
        self._gpu = gpu or _TorchGpu()

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        replays: dict[str, Replay] = {}
        for arm in calls:
            if arm.name not in replays:
                replays[arm.name] = self._captured(arm, prepare)
        timings = []
        for index, arm in enumerate(calls):
            span = round(replays[arm.name]())
            if span <= 0:
                raise TimerError(
                    f"call {index} of arm {arm.name!r}: {span} ns passed between the events before and after it, expected more; "
                    "take --timer cupti"
                )
            timings.append(CallTiming.of_whole(span))
        return timings

    def _captured(self, arm: Arm, prepare: Callable[[Arm], None]) -> Replay:
        try:
            replay = self._gpu.capture(lambda: prepare(arm), arm.call)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise NotCapturableError(
                f"arm {arm.name!r} cannot be captured in a CUDA graph ({lines[0] if lines else type(error).__name__}): it waits for the "
                "device, allocates outside of torch or copies from pageable memory; take --timer cupti or cuda_events"
            ) from error
        # The first launch of a graph uploads it too.  And a replay that fails would else be told as a next arm that cannot be captured.
        replay()
        return replay


class _TorchGpu:
    """The current CUDA device."""

    def capture(self, before: Callable[[], object], timed: Callable[[], object]) -> Replay:
        import torch

        graph = torch.cuda.CUDAGraph()
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Not `torch.cuda.graph`: it collects garbage and empties the allocator's cache at every capture, and there is one for every arm.
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                launch_spin(SPIN_US)
                before()
                start.record()
                timed()
                end.record()
            except BaseException:
                with suppress(RuntimeError):  # what broke the capture is the error to show
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> float:
            graph.replay()
            torch.cuda.synchronize()  # not `end.synchronize()`: whether that waits for what a graph records is not documented
            return float(start.elapsed_time(end) * 1e6)

        return replay
