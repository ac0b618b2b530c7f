"""When the look at the device that passed while the kernels loaded is enough, and when it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fusebench.cli import ncu_device
from fusebench.device import resolve_device
from fusebench.device.nsight import probe_nsight


@pytest.mark.usefixtures("with_gpu", "fake_ncu")
def test_a_device_that_was_waited_for_or_not_seen_idle_is_looked_at_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[float] = []
    monkeypatch.setattr(ncu_device, "require_idle", lambda device, *, wait_s, on_wait: again.append(wait_s) or ["a warning"])
    fit = ncu_device.FitDevice(resolve_device("cuda"), probe_nsight(), seen_idle=True)

    @contextmanager
    def lock(device: object, *, wait_s: float, on_wait: Callable[[str], None]) -> Iterator[None]:
        if wait_s:
            on_wait("waiting")
        yield

    monkeypatch.setattr(ncu_device, "device_lock", lock)
    for one, wait_s, expected in ((fit, 0.0, []), (fit, 5.0, [5.0]), (replace(fit, seen_idle=False), 0.0, [0.0])):
        again.clear()
        with ncu_device.hold(one, wait_s=wait_s) as warnings:
            assert (again, warnings) == (expected, ["a warning"] if expected else [])
