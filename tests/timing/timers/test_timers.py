"""Choice of the timer, the host timer, and the reading that empties the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from fusebench.errors import UnknownNameError, UsageError
from fusebench.timing import preparation
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.timers import host, select
from fusebench.timing.timers.cuda_events import CudaEventTimer
from fusebench.timing.timers.cuda_graph import CudaGraphTimer
from fusebench.timing.timers.cupti import CuptiTimer
from fusebench.timing.timers.host import HostTimer
from fusebench.timing.timers.select import TIMERS, require_timer

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


class Machine:
    """A planted clock and the planted time for which a thread has waited for a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.waited = 0
        self.lost: list[int] = []
        """Waiting times that the next readings of the waiting time meet, half of it before the value is taken."""
        monkeypatch.setattr(host, "now_ns", lambda: self.now)
        monkeypatch.setattr(host, "waiting_time", lambda: nullcontext(self.read_waited))

    def spend(self, working: int, waiting: int = 0) -> Callable[..., None]:
        def spend_it(*_: object) -> None:
            self.now += working + waiting
            self.waited += waiting

        return spend_it

    def read_waited(self) -> int:
        half = self.lost.pop(0) // 2 if self.lost else 0
        self.spend(0, half)()
        seen = self.waited
        self.spend(0, half)()
        return seen

    def span(self, working: int, waiting: int = 0) -> int:
        (timing,) = HostTimer().time_calls([Arm("arm", self.spend(working, waiting), self.spend(0))], self.spend(10_000))
        return timing.span_ns


def test_the_host_timer_times_the_call_and_not_its_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    arms = [Arm("quick", machine.spend(70), machine.spend(0)), Arm("slow", machine.spend(300), machine.spend(0))]
    assert HostTimer().time_calls(arms, machine.spend(10_000)) == [CallTiming(70, 70, 0), CallTiming(300, 300, 0)]


def test_the_host_timer_leaves_out_the_time_for_which_other_programs_had_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine(monkeypatch).span(4_000, waiting=8_000) == 4_000


@pytest.mark.parametrize("lost", [[3_000], [0, 3_000]])
def test_a_wait_outside_of_the_call_shortens_no_call(monkeypatch: pytest.MonkeyPatch, lost: list[int]) -> None:
    """The core is lost most often where the waiting time is read, since that is a system call."""
    machine = Machine(monkeypatch)
    machine.lost = lost
    assert machine.span(4_000) == 4_000
    machine.lost = lost
    assert 4_000 <= machine.span(4_000, waiting=8_000) <= 7_000, "unclear cases may make a call longer, never shorter"


@pytest.mark.skipif(not Path(host.SCHEDULING).exists(), reason="this system does not count how long a thread waits for a core")
def test_the_waiting_time_is_that_of_the_calling_thread() -> None:
    """Another program spins on the one core of this thread."""
    cores = os.sched_getaffinity(0)
    core = min(cores)
    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-S", "-c", spin], stdout=subprocess.PIPE) as spinning:
        try:
            os.sched_setaffinity(0, [core])
            assert spinning.stdout is not None
            spinning.stdout.readline()
            with host.waiting_time() as waited_ns:

                def clocks() -> tuple[int, int, int]:
                    """Waited, passed and used nanoseconds, read without a wait in between, which one of them alone would hold."""
                    for _ in range(1000):
                        before = waited_ns()
                        found = before, time.perf_counter_ns(), time.thread_time_ns()
                        if waited_ns() == before:
                            return found
                    raise AssertionError("the waiting time grows while the thread does not wait")

                found = []
                for _ in range(5):
                    begin = clocks()
                    while time.thread_time_ns() - begin[2] < 30_000_000:
                        pass
                    found.append([now - then for now, then in zip(clocks(), begin, strict=True)])
        finally:
            os.sched_setaffinity(0, cores)
            spinning.kill()
    disturbed = [(waited, wall, used) for waited, wall, used in found if waited > 0.2 * used]
    assert disturbed, "the other program did not disturb: the test shows nothing"
    # The host of a virtual machine may take time of its core that no clock of the thread holds, but hardly in every try.
    assert min(abs(wall - waited - used) / used for waited, wall, used in disturbed) < 0.1


@pytest.mark.parametrize("text", [None, "", "not counted"])
def test_without_the_systems_count_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    monkeypatch.setattr(host, "SCHEDULING", str(tmp_path / "schedstat"))
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    with host.waiting_time() as waited_ns:
        assert waited_ns() == 0


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
