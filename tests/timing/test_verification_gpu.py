"""Kernels that cheat on a GPU: work on a stream that nobody joins, graphs of old data, lines that stay in the cache."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fusebench.accuracy.timed_outputs import TimedOutputs
from fusebench.registry import Collection, Kernel
from fusebench.schema import CacheState, SamplingPlan
from fusebench.timing.arm import Arm
from fusebench.timing.case_timings import CaseTimings
from fusebench.timing.measure import measure_case
from fusebench.timing.placement import arm_specs
from fusebench.timing.preparation import LIMIT_PERSISTING_L2, PersistingLines
from fusebench.timing.timers.cuda_graph import CudaGraphTimer
from fusebench.timing.timers.cupti import CuptiTimer

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
KERNEL = "scale/planted@1"
SIZE = 1 << 22
Function = Callable[..., Any]


@pytest.fixture
def measured(toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan]) -> Callable[..., CaseTimings]:
    """`measured(function, timer)`: the split chain, its control and the planted kernel, cold, on a GPU."""
    import torch

    def run(function: Function, timer: Any = None) -> CaseTimings:
        op, split = toy.ops["scale"], toy.kernels["scale/split@1"]
        return measure_case(
            "suite:case", op, op.Params(size=SIZE), arm_specs([make_kernel("planted", function)], split), device=torch.device("cuda:0"),
            plan=make_plan(rounds=6, cache=CacheState.COLD), timer=timer or CuptiTimer(), seed=5,
            outputs=TimedOutputs(op, split=split, others=lambda kernel: toy.kernels),
        )  # fmt: skip

    return run


@pytest.mark.parametrize("timer", [CuptiTimer, CudaGraphTimer])
def test_an_honest_kernel_is_right_when_timed(measured: Callable[..., CaseTimings], timer: Callable[[], Any]) -> None:
    timings = measured(lambda x, *, factor: x.mul_(factor), timer())
    assert (timings.wrong, timings.suspicious, timings.unverified) == ({}, {}, "")
    assert timings.outputs_compared >= 3


def test_a_graph_that_replays_old_data_is_wrong(measured: Callable[..., CaseTimings]) -> None:
    import torch

    kept: dict[str, Any] = {}

    def replays(x: torch.Tensor, *, factor: float) -> torch.Tensor:
        if not kept:
            kept["source"] = x.clone()
            graph = kept["graph"] = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                kept["result"] = kept["source"] * factor
        kept["graph"].replay()
        result: torch.Tensor = kept["result"]
        return result

    assert set(measured(replays).wrong) == {KERNEL}


def test_work_on_a_side_stream_that_nobody_joins_counts_into_the_span_and_its_output_is_wrong(
    measured: Callable[..., CaseTimings],
) -> None:
    import torch

    side = torch.cuda.Stream()

    def aside(x: torch.Tensor, *, factor: float) -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            x.mul_(factor)

    timings = measured(aside)
    spans = [sample.span_ns for sample in timings.samples if sample.arm == KERNEL]
    assert min(spans) > 500_000, "the spin of a millisecond is in every span"
    assert set(timings.wrong) == {KERNEL}


def test_launches_of_another_thread_count_into_the_call(measured: Callable[..., CaseTimings]) -> None:
    import torch

    def threaded(x: torch.Tensor, *, factor: float) -> None:
        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(2_000_000)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        x.mul_(factor)

    timings = measured(threaded)
    assert min(sample.span_ns for sample in timings.samples if sample.arm == KERNEL) > 500_000


def test_work_that_a_thread_launches_after_the_return_is_suspicious(measured: Callable[..., CaseTimings]) -> None:
    import torch

    def later(x: torch.Tensor, *, factor: float) -> None:
        x.mul_(factor)
        threading.Timer(0.002, lambda: torch.cuda._sleep(1000)).start()

    timings = measured(later)
    assert set(timings.suspicious) == {KERNEL}


def test_lines_that_a_kernel_persists_are_released() -> None:
    import torch

    torch.zeros(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    lines = PersistingLines()
    before = lines.set_aside_bytes
    if driver.cuCtxSetLimit(LIMIT_PERSISTING_L2, ctypes.c_size_t(1 << 20)) != 0:
        pytest.skip("this device sets no part of its cache aside")
    try:
        assert lines.set_aside_bytes >= 1 << 20
        lines.release()
    finally:
        driver.cuCtxSetLimit(LIMIT_PERSISTING_L2, ctypes.c_size_t(before))
    assert lines.set_aside_bytes == before


def test_a_side_stream_of_a_plain_arm_is_in_its_span() -> None:
    import torch

    side, x = torch.cuda.Stream(), torch.ones(1 << 16, device="cuda")

    def call() -> None:
        x.neg_()
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)

    timings = CuptiTimer().time_calls([Arm("aside", call, lambda: None)] * 3, lambda arm: torch.cuda.synchronize())
    assert all(timing.kernels == 2 and timing.span_ns > 300_000 for timing in timings)
