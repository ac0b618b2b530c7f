"""The order of work around the calls of a batch; what a GPU makes of it, `tests/hostile` shows there."""

from __future__ import annotations

import pytest
import torch

from fusebench.judge.candidate import calling_cuda
from fusebench.judge.candidate.calling_cuda import CudaClock, DeviceCall


def test_the_first_call_of_a_batch_finds_a_device_that_is_busy_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host was stopped until then: late launches would make a chain seem slower than one launch."""
    done: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(calling_cuda, "spin", lambda us: done.append(us > 1000.0))
    calls = [DeviceCall(*(lambda what=what: done.append(what) for what in ("call", "fill", "keep"))) for _ in range(3)]
    CudaClock(torch.device("cpu"), timed=False).time(calls, [], lambda: None)
    assert done == [True, "fill", "call", "keep", False, "fill", "call", "keep", False, "fill", "call", "keep"]
