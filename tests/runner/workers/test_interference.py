"""A measurement that something touched is repeated; clocks that are held down are waited for, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fusebench.device import Device
from fusebench.device.monitor import BLIND
from fusebench.errors import DeviceUnfitError
from fusebench.runner.workers.interference import COOLING_S, COOLING_STEP_S, measure_with_retry
from fusebench.runner.workers.protocol import Failure, Measured
from fusebench.schema import Status

HOT = "clocks held down: sw_thermal_slowdown"
TASK: Any = SimpleNamespace(case=SimpleNamespace(key="scale:even"))
REPLY = Measured(
    samples=[], host_us={}, extra_memory_bytes={}, timer="host", timer_fallback="", warm_up={}, seconds=0.0, cut_short=False,
    timer_retries=0,
)  # fmt: skip


class Scripted:
    """What the monitor sees at every look, and then nothing; how often was measured, and how long was waited."""

    def __init__(self, *looks: list[str], reply: Measured | Failure = REPLY) -> None:
        self.looks = list(looks)
        self.reply = reply
        self.measured = 0
        self.waited = 0.0
        self.said: list[str] = []

    def intrusions_since(self, monotonic_time: float) -> list[str]:
        return self.looks.pop(0) if self.looks else []

    def ask(self, task: Any, on_progress: Any) -> Measured | Failure:
        self.measured += 1
        return self.reply

    def pause(self, seconds: float) -> None:
        self.waited += seconds

    def run(self) -> Any:
        here: Any = self
        return measure_with_retry(
            TASK, self, here, Device(kind="cpu", name="Toy"), on_progress=lambda progress: None, warn=self.said.append, pause=self.pause
        )


def test_clocks_that_are_held_down_are_waited_for_and_the_case_is_measured_again() -> None:
    script = Scripted([HOT], [HOT], [HOT], [])
    assert script.run() is REPLY
    assert script.measured == 2
    assert script.waited == 3 * COOLING_STEP_S
    assert "measured again" in script.said[0]


def test_what_no_waiting_removes_is_not_waited_for() -> None:
    script = Scripted(["foreign process train.py (pid 7)"])
    assert script.run() is REPLY
    assert (script.measured, script.waited) == (2, 0.0)


def test_clocks_that_stay_down_end_the_run() -> None:
    script = Scripted(*[[HOT]] * 1000)
    with pytest.raises(DeviceUnfitError, match=r"still holds its clocks down after 60 s of rest .*sw_thermal_slowdown.*fusebench doctor"):
        script.run()
    assert script.waited == COOLING_S


def test_a_kernel_is_not_blamed_for_a_device_that_answers_no_more() -> None:
    failed = Failure(status=Status.CRASHED, reason="CUDA error: unspecified launch failure", kernel="scale/good@1")
    with pytest.raises(DeviceUnfitError, match=r"answers no more, so no kernel is to blame: .*GPU is lost; CUDA error: unspecified"):
        Scripted([f"{BLIND}: GpuUnavailableError: GPU is lost"], reply=failed).run()


def test_a_kernels_failure_is_an_answer_and_a_devices_ends_the_run() -> None:
    failed = Failure(status=Status.CRASHED, reason="illegal address")
    assert Scripted([HOT], reply=failed).run() is failed
    with pytest.raises(DeviceUnfitError, match="case scale:even: records were dropped"):
        Scripted(reply=Failure(status=Status.CRASHED, reason="records were dropped", unfit=True)).run()
