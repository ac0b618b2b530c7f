"""The timer that replays graphs, on a device of which every cost is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import Any

import pytest

from fusebench.errors import NotCapturableError, TimerError
from fusebench.timing import cuda_graph
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.cuda_graph import HEAD_START_US, REPLAYS, CudaGraphTimer


class FakeGpu:
    """Every launch costs what it says, and a graph at least what the host takes to launch it; events add a constant, the first replay of a
    graph uploads it, and in the runs that `late` names by number the host loses `late_ns` before the first launch."""

    def __init__(
        self, constant_ns: float = 2800.0, upload_ns: float = 0.0, host_ns: float = 0.0, late_ns: float = 0.0, late: Container[int] = ()
    ) -> None:
        self.constant_ns, self.upload_ns, self.host_ns, self.late_ns, self.late = constant_ns, upload_ns, host_ns, late_ns, late
        self.runs = 0
        self.now = 0.0
        self.captures = 0
        self._recording: list[float] | None = None

    def launch(self, cost_ns: float) -> None:
        assert self._recording is not None, "launched outside of a graph"
        self._recording.append(cost_ns)

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        self.captures += 1
        self._recording = []
        try:
            work()
            total = sum(self._recording)
        finally:
            self._recording = None

        uploads = [self.upload_ns]

        def replay() -> None:
            self.now += max(total, self.host_ns) + (uploads.pop() if uploads else 0.0)

        return replay

    def spin(self, us: float) -> None:
        self.launch(1000 * us)

    def elapsed_ns(self, work: Callable[[], None], head_start_us: float) -> float:
        began = self.now
        work()
        lost = max(0.0, self.late_ns - 1000 * head_start_us) if self.runs in self.late else 0.0
        self.runs += 1
        return self.now - began + lost + self.constant_ns


def arm(gpu: FakeGpu, name: str, cost: float) -> Arm:
    return Arm(name, lambda: gpu.launch(cost), lambda: None)


@pytest.mark.parametrize("constant", [0.0, 2800.0, 50_000.0])
def test_neither_the_constant_nor_the_preparation_is_counted(constant: float) -> None:
    gpu = FakeGpu(constant)
    arms = [arm(gpu, "short", 1500.0), arm(gpu, "long", 14_000.0)]
    timings = CudaGraphTimer(gpu=gpu).time_calls(arms * 2, lambda one: gpu.launch(60_000.0))
    assert timings == [CallTiming(1500, 1500, 0), CallTiming(14_000, 14_000, 0)] * 2


def test_what_the_first_replay_of_a_graph_costs_is_not_counted() -> None:
    """Seen on an H200: a first call of -84 us, which ended the measurement."""
    gpu = FakeGpu(upload_ns=300_000.0)
    (timing,) = CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "short", 1500.0)], lambda one: gpu.launch(60_000.0))
    assert timing.span_ns == 1500


@pytest.mark.parametrize("call_ns", [1500.0, 51_000.0])
def test_what_the_host_takes_to_launch_a_graph_is_not_taken_off_a_call_that_needs_no_preparation(call_ns: float) -> None:
    gpu = FakeGpu(host_ns=4200.0)
    (timing,) = CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "warm", call_ns)], lambda one: None)
    assert timing.span_ns == call_ns


def test_the_planted_defect_of_the_test_above_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "GRAPH_SPIN_US", 0.0)
    gpu = FakeGpu(host_ns=4200.0)
    (timing,) = CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "warm", 51_000.0)], lambda one: None)
    assert timing.span_ns == 51_000 - 4200


FIRST_RUN = 2
"""The runs before are those that upload both graphs of the only arm."""


@pytest.mark.parametrize("late", range(FIRST_RUN, FIRST_RUN + 4))
def test_a_host_that_comes_late_to_its_first_launch_is_not_counted(late: int) -> None:
    gpu = FakeGpu(late_ns=64_000.0, late=[late])
    (timing,) = CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "short", 6000.0)], lambda one: gpu.launch(60_000.0))
    assert timing.span_ns == 6000


def test_the_planted_defect_of_the_test_above_shows_as_on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "HEAD_START_US", 0.0)
    gpu = FakeGpu(late_ns=64_000.0, late=[FIRST_RUN])
    with pytest.raises(TimerError, match=r"'short': its replays took 10000 ns less than those without it; .* or replays were held up"):
        CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "short", 6000.0)], lambda one: gpu.launch(60_000.0))


def test_a_replay_that_fails_is_not_told_as_a_next_arm_that_cannot_be_captured() -> None:
    """A GPU fails when it is waited for, which the next capture does first."""

    class Failing(FakeGpu):
        broken = False

        def capture(self, work: Callable[[], object]) -> Callable[[], None]:
            if self.broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            replay = super().capture(work)

            def fails() -> None:
                replay()
                self.broken = True

            return fails

        def elapsed_ns(self, work: Callable[[], None], head_start_us: float) -> float:
            found = super().elapsed_ns(work, head_start_us)
            if self.broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return found

    gpu = Failing()
    with pytest.raises(RuntimeError, match=r"^CUDA error") as raised:
        CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "faulty", 1.0), arm(gpu, "sound", 1.0)], lambda one: None)
    assert not isinstance(raised.value, NotCapturableError)
    assert gpu.captures == 2, "no other arm was begun"


def test_what_was_captured_with_the_call_is_in_the_preparation_alone_too() -> None:
    """The planted defect of the test above: a preparation that the second graph lacks would be counted."""
    gpu = FakeGpu()
    seen = iter([60_000.0, 0.0])
    (timing,) = CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "short", 1500.0)], lambda one: gpu.launch(next(seen)))
    assert timing.span_ns == 61_500


def test_each_arm_is_captured_once_however_often_it_is_called() -> None:
    gpu = FakeGpu()
    CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "a", 10.0)] * 7, lambda one: None)
    assert gpu.captures == 2


@pytest.mark.parametrize("message", ["operation not permitted when stream is capturing\nmore", ""])
def test_what_cannot_be_captured_is_refused_with_its_reason(message: str) -> None:
    gpu = FakeGpu()

    def waits() -> None:
        raise RuntimeError(message)

    with pytest.raises(NotCapturableError, match=r"arm 'waits' cannot be captured in a CUDA graph \(.+\): .*--timer cupti"):
        CudaGraphTimer(gpu=gpu).time_calls([Arm("waits", waits, lambda: None)], lambda one: None)


def test_a_call_that_takes_no_time_is_no_time() -> None:
    gpu = FakeGpu()
    with pytest.raises(TimerError, match="too short for the timer cuda_graph"):
        CudaGraphTimer(gpu=gpu).time_calls([arm(gpu, "nothing", 0.0)], lambda one: None)


def test_refuses_no_replay() -> None:
    with pytest.raises(ValueError, match="replays=0"):
        CudaGraphTimer(replays=0, gpu=FakeGpu())
    assert REPLAYS >= 1


@pytest.mark.gpu
@pytest.mark.alone
def test_replays_agree_with_the_activity_records() -> None:
    """Without the constant of 2.8 us that a pair of events adds to each call.

    Of a call that touches no memory: what lies in the L2 when a replay begins is not what lies there when a call does that the host made,
    and 64 MB took 29.5 us in the one way and 32.8 in the other.
    """
    from statistics import median

    import torch

    from fusebench.timing.cupti import CuptiTimer

    one = Arm("spin", lambda: torch.cuda._sleep(100_000), lambda: None)  # some 50 us

    def typical(timer: Any) -> float:
        return median(timing.span_ns for timing in timer.time_calls([one] * 20, lambda arm: None))

    typical(CuptiTimer())
    assert typical(CudaGraphTimer()) == pytest.approx(typical(CuptiTimer()), abs=2000)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("head_start_us", [HEAD_START_US, 0.0])
def test_a_host_that_comes_late_is_covered_by_the_head_start_and_by_nothing_else(head_start_us: float) -> None:
    """By a planted delay of 100 us before a launch of 50."""
    from statistics import median

    import torch

    gpu = cuda_graph._TorchGpu()
    replay = gpu.capture(lambda: torch.cuda._sleep(100_000))

    def late() -> None:
        until = time.perf_counter() + 100e-6
        while time.perf_counter() < until:
            pass
        replay()

    lost = median(gpu.elapsed_ns(late, head_start_us) - gpu.elapsed_ns(replay, HEAD_START_US) for _ in range(20))
    assert lost == pytest.approx(0.0 if head_start_us else 100_000.0, abs=20_000)


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
def test_a_case_is_measured_end_to_end_by_replays() -> None:
    """Inputs restored and cache emptied inside of the graphs, and no head start for a host that launches nothing.

    Medians, since other processes' work may hold up some calls where the GPU is shared: that multiplies a mean and moves no median.
    """
    from pathlib import Path
    from statistics import median

    import torch

    from fusebench.registry import load_collection
    from fusebench.schema import CacheState, SamplingPlan
    from fusebench.timing.cupti import CuptiTimer
    from fusebench.timing.measure import measure_case
    from fusebench.timing.placement import arm_specs

    collection = load_collection([Path(__file__).parents[2] / "kernels"], entry_points=False)
    op, baseline = collection.op("qknorm_rope"), collection.kernel("qknorm_rope/split_triton@1")
    params = op.parse_params({"tokens": 4096, "heads": 24, "head_dim": 128, "layout": "interleaved"})
    plan = SamplingPlan(replicates=2, rounds=6, cache=CacheState.COLD, trim=0.1)
    typical = {}
    for timer in (CuptiTimer(), CudaGraphTimer()):
        timings = measure_case("s:c", op, params, arm_specs([], baseline), device=torch.device("cuda:0"), plan=plan, timer=timer, seed=1)
        typical[timer.name] = median(sample.span_ns for sample in timings.samples if sample.arm == str(baseline.id))
    assert typical["cuda_graph"] == pytest.approx(typical["cupti"], rel=0.15)
