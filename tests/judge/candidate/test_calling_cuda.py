"""The order of work around the calls of a batch; what a GPU makes of it, `tests/hostile` shows there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.judge.candidate import calling_cuda
from fusebench.judge.candidate.calling_cuda import CudaClock, DeviceCall
from fusebench.schema import CacheState
from fusebench.timing import preparation


class Timing:
    """A timer that makes the calls and knows no times."""

    name = "cupti"

    def record(self, calls: Any, prepare: Any) -> list[Any]:
        for arm in calls:
            prepare(arm)
            arm.call()
        return []


def test_the_first_call_of_a_batch_has_the_longer_head_start_after_the_last_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the preparation waits for the device, as it does where lines persist in the L2, and with it for every spin before."""
    done: list[object] = []

    class Persisting:
        def release(self) -> None:
            done.append("wait")

    prepared = preparation.Preparation(torch.device("cpu"), CacheState.WARM, {calling_cuda._FIRST: calling_cuda._CALL})
    prepared._on_gpu, prepared._persisting = True, Persisting()  # type: ignore[assignment]
    prepared.evict = lambda: done.append("empty")
    monkeypatch.setattr(calling_cuda, "Preparation", lambda *given: prepared)
    monkeypatch.setattr(calling_cuda, "CuptiTimer", Timing)
    monkeypatch.setattr(calling_cuda, "start_profiler", lambda device: None)
    monkeypatch.setattr(calling_cuda, "spin", done.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    calls = [DeviceCall(*(lambda what=what: done.append(what) for what in ("call", "fill", "keep"))) for _ in range(3)]
    clock = CudaClock(torch.device("cpu"), timed=True)
    clock.time(calls, [], lambda: None)
    assert done == ["wait", 4000.0, "fill", "empty", "call", "keep", *["wait", 2000.0, "fill", "empty", "call", "keep"] * 2]
    assert clock.problem.startswith("the profiler kept 0 ranges"), "the planted timer leaves no records"
    done.clear()
    prepared.give_head_start({})
    CudaClock(torch.device("cpu"), timed=False).time(calls[:1], [], lambda: None)
    assert done == ["wait", calling_cuda._FILL_US, "fill", "empty", "call", "keep"], "a stream that does not wait finds other values"
