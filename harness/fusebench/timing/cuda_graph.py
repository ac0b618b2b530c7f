"""Fallback timer on CUDA: a call captured in a graph, timed by the difference between n and 2n replays.

The difference cancels what events and the first launch add.  What must precede every call (inputs restored, cache emptied) is captured with
it, and once more without it; the difference between the two is the call's time.  So a cold call's time carries the scatter of two
evictions that are many times as long as itself, and nothing is seen of the single activities: hence a fallback, whose name is part of the
result, and whose results are never compared with another timer's.

Both begin with a spin.  A graph that is over before the host has launched the next one takes as long as the launch: without a spin, what
precedes a warm call may be nothing at all, and 4 us of launches were taken off a call of 51 us on an H200 whose host was busy.

And the host has launched all replays of a run before the first of them begins: what it loses between the first event and the first launch
would be counted, and once made a call of 6 us less than nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ..errors import NotCapturableError, TimerError
from .arm import Arm, CallTiming
from .spin import launch_spin

REPLAYS = 4
"""Replays in the shorter of the two runs.  Each replay of a cold call on an H200 reads 240 MB in about 60 us, so a timed call takes
24 replays or 1.5 ms; twice as many would halve the clock's share (events tick in 32 ns there) and double that."""

GRAPH_SPIN_US = 20.0
"""How long the spin at the beginning of a graph takes: some times what a host takes to launch one."""

HEAD_START_US = 200.0
"""How long the device is kept busy before a run of replays: some times what a host takes to launch the eight of the longer one."""

Replay = Callable[[], None]


class Gpu(Protocol):
    """What the timer needs of a device."""

    def capture(self, work: Callable[[], object]) -> Replay:
        """Record what `work` launches without running it; the result launches all of it once."""
        ...

    def spin(self, us: float) -> None:
        """Launch what keeps the device busy for about so many microseconds."""
        ...

    def elapsed_ns(self, work: Callable[[], None], head_start_us: float) -> float:
        """Device time from before the first launch of `work` to after its last, of which the host makes as many as it can while the device
        is kept busy for `head_start_us` microseconds, which are not counted."""
        ...


class CudaGraphTimer:
    """Times calls by their graphs' replays.

    Raises NotCapturableError for a call that no graph can hold, TimerError for one too short to be told from the noise of replays.
    """

    name = "cuda_graph"

    def __init__(self, replays: int = REPLAYS, gpu: Gpu | None = None) -> None:
        if replays < 1:
            raise ValueError(f"replays={replays!r}: expected at least one")
        self._replays = replays
        self._gpu = gpu or _TorchGpu()

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        graphs: dict[str, tuple[Replay, Replay]] = {}
        for arm in calls:
            if arm.name not in graphs:
                graphs[arm.name] = self._captured(arm, prepare)
        timings = []
        for index, arm in enumerate(calls):
            whole, preparation = graphs[arm.name]
            span = round(self._replay_ns(whole) - self._replay_ns(preparation))
            if span <= 0:
                raise TimerError(
                    f"call {index} of arm {arm.name!r}: its replays took {-span} ns less than those without it; "
                    "it is too short for the timer cuda_graph, or replays were held up; take --timer cupti"
                )
            timings.append(CallTiming(span_ns=span, busy_ns=span, kernels=0))
        return timings

    def _captured(self, arm: Arm, prepare: Callable[[Arm], None]) -> tuple[Replay, Replay]:
        def preparation() -> None:
            self._gpu.spin(GRAPH_SPIN_US)
            prepare(arm)

        def whole() -> None:
            preparation()
            arm.call()

        try:
            graphs = self._gpu.capture(whole), self._gpu.capture(preparation)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise NotCapturableError(
                f"arm {arm.name!r} cannot be captured in a CUDA graph ({lines[0] if lines else type(error).__name__}): it waits for the "
                "device, allocates outside of torch or copies from pageable memory; take --timer cupti or cuda_events"
            ) from error
        for replay in graphs:
            # The first launch of a graph uploads it too, which the shorter of two runs alone would hold: calls of negative length.  Waited
            # for, since a replay that fails would else be told as a next arm that cannot be captured.
            self._gpu.elapsed_ns(replay, HEAD_START_US)
        return graphs

    def _replay_ns(self, replay: Replay) -> float:
        """Device time of one replay, from the difference between n and 2n."""

        def replay_times(count: int) -> Callable[[], None]:
            def work() -> None:
                for _ in range(count):
                    replay()

            return work

        short, long = (self._gpu.elapsed_ns(replay_times(runs * self._replays), HEAD_START_US) for runs in (1, 2))
        return (long - short) / self._replays


class _TorchGpu:
    """The current CUDA device."""

    def capture(self, work: Callable[[], object]) -> Replay:
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Not `torch.cuda.graph`: it collects garbage and empties the allocator's cache at every capture, for two captures an arm.
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # what broke the capture is the error to show
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay

    def spin(self, us: float) -> None:
        launch_spin(us)

    def elapsed_ns(self, work: Callable[[], None], head_start_us: float) -> float:
        import torch

        launch_spin(head_start_us)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end) * 1e6)
