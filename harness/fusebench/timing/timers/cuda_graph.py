"""Fallback timer on CUDA: a call captured in a graph, between two events that the graph records.

The preparation of every call (inputs restored, cache emptied) is captured before the first event, so a replay is one timed call.  Inputs
are therefore new in every replicate, and equal for the replays of one graph.  The host
launches it whole, so no gap inside a chain of launches is the host's.  As in `cuda_events`, the events add a constant.  The timer is
therefore a fallback, its name is part of the result, and its results are never compared with another timer's.

The timer does not subtract replays without the call from replays with it.  That would cancel the constant, but a call changes the cache and
with it the time of the next preparation.  On an H200 a launch then seemed faster by a sixth after the cache was emptied, which really makes
it a third slower; and host delays between two launches gave negative times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ...errors import NotCapturableError, TimerError
from ..arm import Arm, CallTiming
from ..preparation import launch_spin

SPIN_US = 20.0
"""A graph first spins this long, so that the first event finds a busy device even where no preparation precedes the call."""

Replay = Callable[[], float]


class Gpu(Protocol):
    """The device functions that the timer needs."""

    def capture(self, before: Callable[[], object], timed: Callable[[], object]) -> Replay:
        """Record the launches of both, one after the other, without running them.

        The result launches the recording once, waits for it, and returns the time of `timed` in nanoseconds.
        """
        ...


class CudaGraphTimer:
    """Times calls by replays of their graphs.

    Raises:
        NotCapturableError: a call cannot be captured in a graph.
        TimerError: a replay took no time.
    """

    name = "cuda_graph"

    def __init__(self, gpu: Gpu | None = None) -> None:
        self._gpu = gpu or _TorchGpu()

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        replays: dict[str, Replay] = {}
        returned: dict[str, object] = {}
        """What the captured calls returned: each replay writes it anew."""
        for arm in calls:
            if arm.name not in replays:
                replays[arm.name] = self._captured(arm, prepare, returned)
        timings = []
        for index, arm in enumerate(calls):
            span = round(replays[arm.name]())
            if span <= 0:
                raise TimerError(
                    f"call {index} of arm {arm.name!r}: {span} ns passed between the events before and after it, expected more; "
                    "take --timer cupti"
                )
            arm.after(returned.get(arm.name))
            timings.append(CallTiming.of_whole(span))
        return timings

    def _captured(self, arm: Arm, prepare: Callable[[Arm], None], returned: dict[str, object]) -> Replay:
        def call() -> None:
            returned[arm.name] = arm.call()

        try:
            replay = self._gpu.capture(lambda: prepare(arm), call)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise NotCapturableError(
                f"arm {arm.name!r} cannot be captured in a CUDA graph ({lines[0] if lines else type(error).__name__}): it waits for the "
                "device, allocates outside of torch or copies from pageable memory; take --timer cupti or cuda_events"
            ) from error
        # The first launch of a graph also uploads it.  Launch it here, so that a failing replay is not blamed on the next arm's capture.
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
        # Not `torch.cuda.graph`: it collects garbage and empties the allocator's cache at every capture, and each arm has a capture.
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
            torch.cuda.synchronize()  # not `end.synchronize()`: torch does not document whether that waits for a graph's event
            return float(start.elapsed_time(end) * 1e6)

        return replay
