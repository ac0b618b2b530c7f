"""The kernels that `fusebench calibrate` slows down: they compute what they say, and wait for as long as they are asked to."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from fusebench.registry import Collection, load_collection
from fusebench.runner.calibrate.targets import CALIBRATION_KERNELS, SPINNING_KERNEL, WAITING_KERNEL


@pytest.fixture
def planted() -> Collection:
    return load_collection([CALIBRATION_KERNELS], entry_points=False)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [WAITING_KERNEL, SPINNING_KERNEL])
@pytest.mark.parametrize("elements", [1, 1000, 2**20 + 3])
def test_a_vector_is_negated_whatever_the_delay(planted: Collection, kernel: str, elements: int) -> None:
    import torch

    x = torch.randn(elements, device="cuda")
    expected = x.clone()
    for delay_ns in (0, 2000, 500):
        planted.kernel(kernel)(x, delay_ns=delay_ns)
        expected = -expected
        assert torch.equal(x, expected)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("kernel", "launches"), [(WAITING_KERNEL, 2), (SPINNING_KERNEL, 1)])
def test_a_longer_delay_takes_longer_by_as_much(planted: Collection, kernel: str, launches: int) -> None:
    import torch

    from fusebench.timing.arm import Arm
    from fusebench.timing.timers.cupti import CuptiTimer

    x = torch.randn(2**20, device="cuda")

    def arm(delay_ns: int) -> Arm:
        return Arm(str(delay_ns), lambda: planted.kernel(kernel)(x, delay_ns=delay_ns), lambda: None)

    def prepare(_: Any) -> None:
        torch.cuda._sleep(200_000)  # the host queues the whole call meanwhile

    arms = [arm(2_000), arm(12_000)]
    for each in arms:
        each.call()
    timings = CuptiTimer().time_calls(arms * 30, prepare)
    assert {timing.kernels for timing in timings} == {launches}
    short, long = (median(timing.span_ns for timing in timings[place::2]) for place in (0, 1))
    assert long - short == pytest.approx(10_000, rel=0.15), "a clock of 2 GHz is some percent off"
