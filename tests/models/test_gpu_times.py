"""GPU busy times stand beside the wall clock's: paired by round, absent with a reason, and one variant's failure leaves the others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from fusebench.errors import TimerError
from fusebench.models.measuring.gpu_times import with_gpu_times
from fusebench.schema import Estimate
from fusebench.schema.models import StepTime
from fusebench.timing.arm import Arm, CallTiming

BUSY_MS = {"split": 10.0, "fused": 8.0, "compiled": 9.0}
TIMES = tuple(StepTime(variant=name, time_ms=Estimate(time + 1, time, time + 2)) for name, time in BUSY_MS.items())
VARIANTS = [SimpleNamespace(name=name, predict=lambda name=name: name) for name in BUSY_MS]


class Timer:
    """Sees the step's variant by what the step returns."""

    name = "fake"

    def __init__(self, broken: str = "") -> None:
        self.broken, self.timed = broken, list[str]()

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        (arm,) = calls
        prepare(arm)
        variant = str(arm.call())
        self.timed.append(variant)
        if variant == self.broken:
            raise TimerError("CUPTI dropped its records")
        busy = int(BUSY_MS[variant] * 1e6)
        return [CallTiming(span_ns=busy + 500_000, busy_ns=busy, kernels=3)]


def measured(timer: Timer, *, budget_s: float = 0.5, times: Sequence[StepTime] = TIMES) -> tuple[tuple[StepTime, ...], str]:
    denoising = SimpleNamespace(device=torch.device("cpu"), middle=lambda: ())
    return with_gpu_times(times, VARIANTS, denoising, timer, budget_s=budget_s, target=0.003, say=lambda text: None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


def test_busy_times_are_paired_with_split() -> None:
    timer = Timer()
    found, absent = measured(timer)
    assert absent == ""
    split, fused, _ = (one.gpu for one in found)
    assert split is not None
    assert fused is not None
    assert (split.busy_ms.value, split.speedup) == (pytest.approx(10.0), None)
    assert (fused.busy_ms.value, fused.span_ms) == (pytest.approx(8.0), pytest.approx(8.5))
    assert fused.speedup is not None
    assert fused.speedup.value == pytest.approx(1.25)
    assert [one.time_ms for one in found] == [one.time_ms for one in TIMES], "wall clock stays what it was"
    assert timer.timed[:6] == timer.timed[:6][::-1], "forth and back"


@pytest.mark.parametrize("broken", ["split", "compiled"])
def test_a_variant_whose_records_were_dropped_is_named_and_the_others_have_times(broken: str) -> None:
    found, absent = measured(Timer(broken))
    assert absent == f"{broken}: CUPTI dropped its records"
    assert [one.variant for one in found if one.gpu is None] == [broken]
    over_split = {one.variant: one.gpu.speedup is not None for one in found if one.gpu is not None}
    assert over_split == ({"split": False, "fused": True} if broken == "compiled" else {"fused": False, "compiled": False})


def test_steps_that_take_too_long_are_left_out_with_the_reason() -> None:
    slow = [StepTime(variant=one.variant, time_ms=Estimate(1e4, 1e4, 1e4)) for one in TIMES]
    found, absent = measured(Timer(), times=slow)
    assert [one.gpu for one in found] == [None] * 3
    assert absent == "one round would take 120 s, and 0.5 s are for all; raise --budget"
