"""Choice of the timer, the host timer, and the reading that empties the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusebench.errors import UnknownNameError, UsageError
from fusebench.timing import host, preparation, select
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.cuda_events import CudaEventTimer
from fusebench.timing.cuda_graph import CudaGraphTimer
from fusebench.timing.cupti import CuptiTimer
from fusebench.timing.host import HostTimer
from fusebench.timing.select import TIMERS, require_timer

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "kineto", "timer", "reason"),
    [
        (("cpu", "auto"), False, HostTimer, ""),
        (("cpu", "host"), False, HostTimer, ""),
        (("cuda", "auto"), True, CuptiTimer, ""),
        (("cuda", "auto"), False, CudaEventTimer, "no CUPTI"),
        (("cuda", "cupti"), False, CuptiTimer, ""),
        (("cuda", "cuda_events"), True, CudaEventTimer, "asked for"),
        (("cuda", "cuda_graph"), True, CudaGraphTimer, "asked for"),
    ],
)
def test_a_device_gets_its_default_or_what_was_asked_for_and_why(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[str, str], kineto: bool, timer: type, reason: str
) -> None:
    monkeypatch.setattr(select, "_kineto_sees_cuda", lambda: kineto)
    chosen, why = select.select_timer(*asked)
    assert type(chosen) is timer
    assert bool(why) == bool(reason)
    assert reason in why


@pytest.mark.parametrize(("device", "requested"), [("cpu", "cupti"), ("cpu", "cuda_events"), ("cpu", "cuda_graph"), ("cuda", "host")])
def test_a_timer_that_cannot_time_the_device_is_refused_never_replaced(device: str, requested: str) -> None:
    with pytest.raises(UsageError, match=f"--timer {requested} times"):
        select.select_timer(device, requested)


def test_a_misspelt_timer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown timer 'cupty'; did you mean 'cupti'\?"):
        require_timer("cupty")
    for name in TIMERS:
        require_timer(name)


def test_the_host_timer_times_the_call_and_not_its_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(host, "now_ns", lambda: now[0])

    def spend(nanoseconds: int) -> Callable[..., None]:
        def spend_it(*_: object) -> None:
            now[0] += nanoseconds

        return spend_it

    arms = [Arm("quick", spend(70), spend(0)), Arm("slow", spend(300), spend(0))]
    assert HostTimer().time_calls(arms, spend(10_000)) == [CallTiming(70, 70, 0), CallTiming(300, 300, 0)]


@pytest.fixture
def cpu_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`cpu_caches("48K", "32768K")`: what the system says of the first core's caches."""

    def write(*sizes: str) -> None:
        for index, size in enumerate(sizes):
            (tmp_path / f"index{index}").mkdir()
            (tmp_path / f"index{index}" / "size").write_text(size + "\n")
        monkeypatch.setattr(preparation, "Path", lambda _: tmp_path)

    return write


def test_the_largest_cache_of_a_core_is_its_last_level(cpu_caches: Callable[..., None]) -> None:
    cpu_caches("48K", "32K", "2048K", "32768K")
    assert preparation.last_level_cache_bytes(CPU) == 32 * 2**20


def test_a_system_that_does_not_tell_gets_an_assumed_cache(cpu_caches: Callable[..., None]) -> None:
    cpu_caches()
    assert preparation.last_level_cache_bytes(CPU) == preparation.UNKNOWN_CPU_CACHE


@pytest.mark.parametrize(("cache_bytes", "read"), [(64 * 2**10, 256 * 2**10), (2**30, 2**20)], ids=["four times the cache", "limit"])
def test_the_evictor_reads_several_caches_up_to_a_limit_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, cache_bytes: int, read: int
) -> None:
    buffers: list[torch.Tensor] = []
    monkeypatch.setattr(preparation, "last_level_cache_bytes", lambda device: cache_bytes)
    monkeypatch.setattr(preparation, "CPU_EVICTION_LIMIT", 2**20)
    monkeypatch.setattr(torch, "sum", buffers.append)
    evict = preparation.make_evictor(CPU)
    assert buffers == [], "nothing is read before it is asked for"
    evict()
    evict()
    assert [buffer.nbytes for buffer in buffers] == [read, read]
    assert buffers[0]._version == 0
    assert buffers[0].data_ptr() == buffers[1].data_ptr()
