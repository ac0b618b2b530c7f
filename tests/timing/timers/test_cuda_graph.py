"""The timer that replays graphs, on a device of which every cost is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusebench.errors import NotCapturableError, TimerError
from fusebench.timing.arm import Arm, CallTiming, Timer
from fusebench.timing.case_timings import CaseTimings
from fusebench.timing.timers.cuda_graph import CudaGraphTimer


class FakeGpu:
    """Every launch costs what it says, events around launches add a constant, and the first replay of a graph uploads it."""

    def __init__(self, constant_ns: float = 0.0, upload_ns: float = 0.0) -> None:
        self.constant_ns, self.upload_ns = constant_ns, upload_ns
        self.captures = 0
        self._recording: list[float] | None = None

    def launch(self, cost_ns: float) -> None:
        assert self._recording is not None, "launched outside of a graph"
        self._recording.append(cost_ns)

    def capture(self, before: Callable[[], object], timed: Callable[[], object]) -> Callable[[], float]:
        self.captures += 1
        self._recording = []
        try:
            before()
            self._recording.clear()
            timed()
            total = sum(self._recording) + self.constant_ns
        finally:
            self._recording = None
        uploads = [self.upload_ns]
        return lambda: total + (uploads.pop() if uploads else 0.0)


def arm(gpu: FakeGpu, name: str, cost: float) -> Arm:
    return Arm(name, lambda: gpu.launch(cost), lambda: None)


def test_a_call_is_timed_without_what_precedes_it() -> None:
    gpu = FakeGpu(constant_ns=2800.0)
    arms = [arm(gpu, "short", 1500.0), arm(gpu, "long", 14_000.0)]
    timings = CudaGraphTimer(gpu).time_calls(arms * 2, lambda one: gpu.launch(60_000.0))
    assert timings == [CallTiming(4300, 4300, 0), CallTiming(16_800, 16_800, 0)] * 2


def test_what_the_first_replay_of_a_graph_costs_is_not_counted() -> None:
    gpu = FakeGpu(upload_ns=300_000.0)
    (timing,) = CudaGraphTimer(gpu).time_calls([arm(gpu, "short", 1500.0)], lambda one: gpu.launch(60_000.0))
    assert timing.span_ns == 1500


def test_a_replay_that_fails_is_not_told_as_a_next_arm_that_cannot_be_captured() -> None:
    """A GPU fails when it is waited for, which the next capture does first."""

    class Failing(FakeGpu):
        def capture(self, before: Callable[[], object], timed: Callable[[], object]) -> Callable[[], float]:
            super().capture(before, timed)

            def fails() -> float:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

            return fails

    gpu = Failing()
    with pytest.raises(RuntimeError, match=r"^CUDA error") as raised:
        CudaGraphTimer(gpu).time_calls([arm(gpu, "faulty", 1.0), arm(gpu, "sound", 1.0)], lambda one: None)
    assert not isinstance(raised.value, NotCapturableError)
    assert gpu.captures == 1, "no other arm was begun"


def test_each_arm_is_captured_once_however_often_it_is_called() -> None:
    gpu = FakeGpu()
    CudaGraphTimer(gpu).time_calls([arm(gpu, "a", 10.0)] * 7, lambda one: None)
    assert gpu.captures == 1


@pytest.mark.parametrize("message", ["operation not permitted when stream is capturing\nmore", ""])
def test_what_cannot_be_captured_is_refused_with_its_reason(message: str) -> None:
    gpu = FakeGpu()

    def waits() -> None:
        raise RuntimeError(message)

    with pytest.raises(NotCapturableError, match=r"arm 'waits' cannot be captured in a CUDA graph \(.+\): .*--timer cupti"):
        CudaGraphTimer(gpu).time_calls([Arm("waits", waits, lambda: None)], lambda one: None)


def test_a_call_that_takes_no_time_is_no_time() -> None:
    gpu = FakeGpu()
    with pytest.raises(TimerError, match="call 1 of arm 'nothing': 0 ns passed between the events"):
        CudaGraphTimer(gpu).time_calls([arm(gpu, "some", 1.0), arm(gpu, "nothing", 0.0)], lambda one: None)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("cycles", [10_000, 100_000])
def test_replays_agree_with_the_activity_records_up_to_a_constant(cycles: int) -> None:
    """Of calls of some 5 and 50 us that touch no memory, with nothing before them."""
    from statistics import median

    import torch

    from fusebench.timing.timers.cupti import CuptiTimer

    one = Arm("spin", lambda: torch.cuda._sleep(cycles), lambda: None)

    def typical(timer: Timer) -> float:
        return median(timing.span_ns for timing in timer.time_calls([one] * 20, lambda arm: None))

    typical(CuptiTimer())
    assert 0 < typical(CudaGraphTimer()) - typical(CuptiTimer()) < 5000


@pytest.mark.gpu
@pytest.mark.alone
def test_a_call_that_waits_for_the_gpu_is_refused() -> None:
    import torch

    x = torch.ones(16, device="cuda")
    with pytest.raises(NotCapturableError):
        CudaGraphTimer().time_calls([Arm("item", lambda: x.sum().item(), lambda: None)], lambda arm: None)
    x.neg_()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.alone
def test_a_case_is_measured_end_to_end_by_replays(measured_cold: Callable[..., CaseTimings]) -> None:
    """Inputs restored and cache emptied inside of the graphs, and no head start for a host that launches nothing.

    Medians, since other processes' work may hold up some calls where the GPU is shared: that multiplies a mean and moves no median.  Of
    kernels alone: a copy is no kernel in a graph, and takes 39 us on an H200 instead of 27.
    """
    from statistics import median

    from fusebench.timing.coldness import without_effect
    from fusebench.timing.placement import COPY
    from fusebench.timing.timers.cupti import CuptiTimer

    def typical(timer: Timer) -> dict[str, float]:
        timings = measured_cold(timer, tokens=4096, rounds=6)
        assert timings.coldness is not None
        assert without_effect(timings.coldness) == ""
        arms = {sample.arm for sample in timings.samples} - {COPY}
        return {arm: median(sample.span_ns for sample in timings.samples if sample.arm == arm) for arm in arms}

    by_records, by_replays = typical(CuptiTimer()), typical(CudaGraphTimer())
    assert {name: by_replays[name] - by_records[name] for name in by_records} == dict.fromkeys(by_records, pytest.approx(2500, abs=2500))
