"""The floor of a cold call: launch, latency, bytes over the memory's speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from fusebench.errors import TimerError
from fusebench.timing import floor as floor_module
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.coldness import Coldness
from fusebench.timing.floor import PROBES, LaunchCosts, floor_of, launch_costs, observe_launch_costs
from fusebench.timing.yardstick import Mix

H200 = Coldness(touched_us=3.1, emptied_us=5.4, memory_gb_per_s=4220.0, stream_bytes=503_316_480, fastest_stream_us=117.96)
"""Eight times its cache; 117.96 us without 0.96 us of launch and latency make 4302 GB/s."""
COSTS = LaunchCosts(empty_us=0.592, one_word_us=0.96)


def test_a_floor_is_the_sum_of_launch_latency_and_bytes() -> None:
    found = floor_of(COSTS, H200, Mix(6_340_000, 6_340_000))
    assert (found.launch_us, found.latency_us) == (0.592, pytest.approx(0.368))
    assert found.gb_per_s == pytest.approx(503_316_480 / 117.0 / 1e3)
    assert found.time_us == pytest.approx(found.launch_us + found.latency_us + 12_680_000 / found.gb_per_s / 1e3)


def test_no_kernel_of_an_h200_was_faster_than_the_limit() -> None:
    """The fastest fused kernels of calls below 10 us, by device time in us, beside the yardstick of the same rounds."""
    for total, yardstick_us, fused_us in ((0.75e6, 2.6, 2.85), (9.56e6, 3.23, 4.70), (12.68e6, 4.19, 5.41), (25.95e6, 7.0, 9.11)):
        limit_us = floor_of(COSTS, H200, Mix(round(total / 2), round(total / 2))).limit_us(yardstick_us)
        assert limit_us <= yardstick_us
        assert limit_us < fused_us


def test_a_long_call_has_no_floor_but_its_yardstick() -> None:
    floor = floor_of(COSTS, H200, Mix(10**7, 10**7))
    assert floor.time_us == pytest.approx(5.6, abs=0.1)
    assert (floor.limit_us(9.99), floor.limit_us(10.0), floor.limit_us(5.0)) == (floor.time_us, 10.0, 5.0)


class Planted:
    """Takes 0.6 us for an empty launch and 1 us for one that moves a word."""

    name = "planted"

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.asked = failures, 0

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        self.asked += 1
        if self.asked <= self.failures:
            raise TimerError("planted")
        for arm in calls:
            prepare(arm)
        return [CallTiming.of_whole(600 if "empty" in arm.name else 1000)._replace(kernels=1) for arm in calls]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebench.timing.preparation.spin", lambda us: None)


@pytest.mark.usefixtures("still")
def test_launches_are_timed_after_the_cache_was_emptied_and_failures_of_the_timer_are_counted() -> None:
    emptied: list[int] = []
    found = observe_launch_costs(Planted(failures=1), lambda: emptied.append(1), lambda: None, lambda: None)
    assert found == LaunchCosts(0.6, 1.0, retries=1)
    assert len(emptied) == 2 * PROBES


@pytest.mark.usefixtures("still")
def test_costs_are_measured_once_per_device_and_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor_module, "_known", {})
    for name in ("_empty_call", "_one_word_call"):
        monkeypatch.setattr(floor_module, name, lambda device: lambda: None)
    timer = Planted(failures=1)
    found = [launch_costs(timer, lambda: None, torch.device("cuda", number)) for number in (0, 0, 1)]
    assert [one.retries for one in found] == [1, 0, 0]
    assert timer.asked == 3
