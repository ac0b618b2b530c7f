"""Proofs that cold samples are cold, on planted warm ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fusebench.errors import NotColdError, TimerError
from fusebench.schema import ExitCode
from fusebench.timing import preparation
from fusebench.timing.arm import Arm, CallTiming, Timer
from fusebench.timing.case_timings import CaseTimings
from fusebench.timing.coldness import (
    EVICTION_FACTOR,
    MEMORY_FACTOR,
    Coldness,
    contradiction,
    observe_coldness,
    require_emptied,
    without_effect,
)
from fusebench.timing.preparation import make_evictor
from fusebench.timing.replicate import RETRIES
from fusebench.timing.timers.cuda_events import CudaEventTimer
from fusebench.timing.timers.cuda_graph import CudaGraphTimer
from fusebench.timing.timers.cupti import CuptiTimer

MeasuredCold = Callable[..., CaseTimings]
H200 = Coldness(touched_us=3.1, emptied_us=5.4, memory_gb_per_s=4250.0)
BYTES = 50_331_648


def test_a_cold_sample_of_an_h200_is_not_contradicted() -> None:
    """14.05 and 11.93 us after a memset and after a read: both below what a large copy moves."""
    assert contradiction({"norm": (BYTES, 14.05), "copy": (BYTES, 11.93)}, H200) == ""


def test_a_planted_warm_sample_is() -> None:
    said = contradiction({"norm": (BYTES, 12.0), "warm": (BYTES, 8.0), "warmer": (BYTES, 7.0)}, H200)
    assert said.startswith("warmer (and 1 more) moved what no cache spares it at 7190 GB/s, more than 1.2 x the 4250 GB/s")


def test_the_limit_is_where_it_is_said_to_be() -> None:
    at = BYTES / (MEMORY_FACTOR * H200.memory_gb_per_s * 1e3)
    assert contradiction({"norm": (BYTES, at * 1.001)}, H200) == ""
    assert contradiction({"norm": (BYTES, at * 0.999)}, H200) != ""


def test_where_nothing_was_observed_nothing_is_claimed() -> None:
    assert contradiction({"norm": (BYTES, 0.001)}, None) == ""


def test_an_eviction_without_effect_is_refused() -> None:
    require_emptied(H200)
    with pytest.raises(NotColdError, match=re.escape("3.10 us on a buffer that it just touched and 3.11 us after")) as caught:
        require_emptied(Coldness(touched_us=3.1, emptied_us=3.11, memory_gb_per_s=4250.0))
    assert caught.value.exit_code is ExitCode.DEVICE_UNFIT
    assert "--cache warm" in str(caught.value)
    assert "emptying the cache has no effect" in contradiction({}, Coldness(touched_us=3.1, emptied_us=3.11, memory_gb_per_s=4250.0))
    assert EVICTION_FACTOR > 1.05, "two medians of the same launch differ by a few percent"


class Failing:
    """Fails `failures` times, then says what is planted: 3 us in a touched buffer, 6 after the cache was emptied, 100 for the stream."""

    name = "failing"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked = 0

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        self.asked += 1
        if self.asked <= self.failures:
            raise TimerError("planted")
        spans = [next(us for word, us in (("touched", 3), ("emptied", 6), ("stream", 100)) if word in arm.name) for arm in calls]
        return [CallTiming(1000 * us, 1000 * us, 1) for us in spans]


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are multiples of the cache, and a server's takes seconds to fill; the failing timer runs nothing."""
    monkeypatch.setattr("fusebench.timing.coldness.last_level_cache_bytes", lambda device: 2**20)


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("failures", [0, 1, RETRIES])
def test_a_timer_that_fails_is_asked_again_and_that_is_counted(failures: int) -> None:
    seen = observe_coldness(Failing(failures), lambda: None, torch.device("cpu"))
    assert (seen.touched_us, seen.emptied_us, seen.retries) == (3.0, 6.0, failures)


@pytest.mark.usefixtures("small_cache")
def test_a_timer_that_fails_again_and_again_ends_the_proof() -> None:
    timer = Failing(RETRIES + 1)
    with pytest.raises(TimerError, match="planted"):
        observe_coldness(timer, lambda: None, torch.device("cpu"))
    assert timer.asked == RETRIES + 1


@pytest.fixture
def cuda() -> Any:
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("timer", [CuptiTimer, CudaEventTimer, CudaGraphTimer])
def test_the_eviction_of_this_gpu_works_and_every_timer_sees_that(cuda: Any, timer: Callable[[], Timer]) -> None:
    seen = observe_coldness(timer(), make_evictor(cuda), cuda)
    assert without_effect(seen) == ""
    assert seen.memory_gb_per_s > 100


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("timer", [CuptiTimer, CudaEventTimer, CudaGraphTimer])
def test_every_timer_sees_an_eviction_without_effect(cuda: Any, timer: Callable[[], Timer]) -> None:
    assert "emptying the cache has no effect" in without_effect(observe_coldness(timer(), lambda: None, cuda))


@pytest.mark.gpu
def test_a_proof_on_which_the_timer_failed_is_made_again_and_counted_with_its_case(measured_cold: MeasuredCold) -> None:
    class Unlucky(CuptiTimer):
        asked = 0

        def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
            self.asked += 1
            if self.asked == 1:
                raise TimerError("planted")
            return super().time_calls(calls, prepare)

    timings = measured_cold(Unlucky())
    assert timings.coldness is not None
    assert timings.coldness.retries == 1
    assert timings.timer_retries == 1


@pytest.mark.gpu
@pytest.mark.alone
def test_a_run_without_eviction_is_not_called_cold(measured_cold: MeasuredCold, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(evictor: Callable[[Any], Callable[[], None]]) -> Any:
        monkeypatch.setattr(preparation, "make_evictor", evictor)
        return measured_cold(CuptiTimer())

    assert contradiction({}, measured(make_evictor).coldness) == ""
    assert "emptying the cache has no effect" in contradiction({}, measured(lambda device: lambda: None).coldness)
