"""The monitor sees what touches the device while a measurement runs, and never ends one by failing itself."""

from __future__ import annotations

import os
import threading
import time

import pytest

from fusebench.device import EnvironmentMonitor, GpuProcess, resolve_device
from fusebench.runner.run.precision import LOOKS

GIB = 2**30
OURS, THEIRS = 1001, 4242


def process(pid: int) -> GpuProcess:
    return GpuProcess(pid=pid, name="python", used_bytes=GIB, kind="compute")


class Clock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(fake_gpu, clock):
    """`watch(script, own={…}, alive={…})`: a monitor over scripted readings, sampled by hand."""

    def build(script, own=frozenset({OURS}), alive=frozenset({OURS, THEIRS})):
        gpu = fake_gpu(script=script)
        device = resolve_device("cuda", gpu, environ={})
        return EnvironmentMonitor(device, lambda: set(own), monitor=gpu, clock=clock, pid_exists=lambda pid: pid in alive)

    return build


def test_an_undisturbed_measurement_has_no_intrusions(watch, gpu_reading) -> None:
    monitor = watch(
        [gpu_reading(processes=(process(OURS),), memory_used_bytes=GIB, utilisation_percent=100, clock_reasons=("sw_power_cap",))]
    )
    assert monitor.intrusions_since(0.0) == []


def test_an_intruder_that_appears_is_reported_for_the_rounds_it_touched(watch, gpu_reading, clock) -> None:
    alone, joined = gpu_reading(processes=(process(OURS),)), gpu_reading(processes=(process(OURS), process(THEIRS)))
    monitor = watch([alone, joined, joined, alone])
    assert monitor.intrusions_since(100.0) == []
    clock.now = 101.0
    monitor.sample()
    clock.now = 102.0
    assert monitor.intrusions_since(101.0) == ["foreign process python (pid 4242)"]
    clock.now = 103.0
    assert monitor.intrusions_since(103.0) == []
    assert monitor.summary()["intrusions"] == ["foreign process python (pid 4242)"]


def test_clocks_held_down_touch_a_round(watch, gpu_reading) -> None:
    monitor = watch([gpu_reading(clock_reasons=("sw_power_cap", "hw_thermal_slowdown"))])
    assert monitor.intrusions_since(0.0) == ["clocks held down: hw_thermal_slowdown"]


def test_a_worker_of_ours_that_has_ended_is_no_intruder(watch, gpu_reading) -> None:
    own = {OURS}
    monitor = watch([gpu_reading(processes=(process(OURS),))], own=own)
    assert monitor.intrusions_since(0.0) == []
    own.clear()
    assert monitor.intrusions_since(0.0) == []


def test_memory_that_is_nobodys_is_reported_once_ours_had_time_to_go(watch, gpu_reading, clock) -> None:
    own = {OURS}
    monitor = watch([gpu_reading(memory_used_bytes=GIB)], own=own)
    assert monitor.intrusions_since(0.0) == [], "a worker of ours explains it"
    own.clear()
    clock.now += 1.0
    assert monitor.intrusions_since(0.0) == [], "the driver may still be releasing it"
    clock.now += 5.0
    assert monitor.intrusions_since(0.0) == [], "one sample may be a coincidence"
    assert "foreign memory" in monitor.intrusions_since(0.0)[0]


def test_memory_of_a_process_that_the_driver_hides_is_reported_beside_our_listed_worker(watch, gpu_reading) -> None:
    ours = gpu_reading(processes=(process(OURS),), memory_used_bytes=GIB)
    more = gpu_reading(processes=(process(OURS),), memory_used_bytes=2 * GIB)
    assert watch([ours, more, ours, more]).intrusions_since(0.0) == []
    monitor = watch([ours, more])
    for _ in range(3):
        monitor.sample()
    assert "foreign memory" in monitor.intrusions_since(0.0)[0]
    assert monitor.summary()["unlisted"] == 0


def test_the_drivers_own_memory_of_all_workers_is_nobodys_and_a_hidden_context_beside_them_is_foreign(watch, gpu_reading) -> None:
    """9 MiB for each process beyond its listed share, as on an H200, where a hidden context has at least 500 MiB."""
    workers = tuple(process(pid) for pid in range(2001, 2001 + LOOKS[-1]))
    own = {one.pid for one in workers}
    drivers, hidden = LOOKS[-1] * 9 * 2**20, 500 * 2**20
    alone = gpu_reading(processes=workers, memory_used_bytes=LOOKS[-1] * GIB + drivers)
    joined = gpu_reading(processes=workers, memory_used_bytes=LOOKS[-1] * GIB + drivers + hidden)
    monitor = watch([alone], own=own)
    for _ in range(3):
        monitor.sample()
    assert monitor.intrusions_since(0.0) == []
    assert monitor.summary()["unexplained_memory_bytes"] == {"min": drivers, "median": drivers, "max": drivers}
    monitor = watch([alone, alone, joined], own=own)
    for _ in range(3):
        monitor.sample()
    assert monitor.intrusions_since(0.0) == [
        f"foreign memory: more than {64 + LOOKS[-1] * 16} MiB in use beyond what listed processes hold"
    ]
    assert monitor.summary()["unexplained_memory_bytes"]["max"] == drivers + hidden


def test_unexplained_memory_that_could_not_be_read_is_not_recorded_as_none_at_all(watch, gpu_reading) -> None:
    monitor = watch([gpu_reading(processes=None, memory_used_bytes=GIB), gpu_reading(memory_used_bytes=None)])
    monitor.sample()
    monitor.sample()
    assert "unexplained_memory_bytes" not in monitor.summary()


def test_samples_in_which_our_worker_was_not_listed_are_counted(watch, gpu_reading) -> None:
    monitor = watch([gpu_reading(memory_used_bytes=GIB), gpu_reading(processes=(process(OURS),), memory_used_bytes=GIB)])
    monitor.sample()
    monitor.sample()
    assert monitor.summary()["unlisted"] == 1


def test_pids_of_another_namespace_are_recorded_and_not_blamed(watch, gpu_reading) -> None:
    host_numbers = gpu_reading(processes=(process(990_001),))
    monitor = watch([host_numbers], alive={OURS})
    assert monitor.intrusions_since(0.0) == []
    assert "990001" in monitor.summary()["unattributed"]
    two = gpu_reading(processes=(process(990_001), process(990_002)))
    assert len(watch([two], alive={OURS}).intrusions_since(0.0)) == 2, "more strangers than workers of ours"
    beside = gpu_reading(processes=(process(OURS), process(990_001)))
    assert len(watch([beside], alive={OURS}).intrusions_since(0.0)) == 1, "ours is listed, so the other is not us"
    assert len(watch([host_numbers], own={os.getpid()}, alive={OURS}).intrusions_since(0.0)) == 1, "no worker of ours lives"


def test_a_failing_reading_is_recorded_and_an_unwatched_round_is_said(watch, gpu_reading, clock) -> None:
    monitor = watch(
        [
            RuntimeError("driver went away"),
            gpu_reading(utilisation_percent=None, unreadable={"utilisation_percent": "Unknown"}),
            gpu_reading(),
        ]
    )
    assert "cannot tell whether the device was touched: RuntimeError: driver went away" in monitor.intrusions_since(100.0)
    clock.now = 101.0
    assert "utilisation_percent: Unknown" in monitor.intrusions_since(101.0)[0]
    assert monitor.intrusions_since(100.0) == [], "one of three readings since then was whole"
    assert monitor.summary()["failures"] == {"count": 2, "last": "utilisation_percent: Unknown"}


def test_the_summary_gives_the_spread_and_the_reasons(watch, gpu_reading) -> None:
    seen = ((345, ("gpu_idle",)), (1980, ()), (1900, ("sw_power_cap",)))
    monitor = watch([gpu_reading(sm_mhz=mhz, clock_reasons=reasons) for mhz, reasons in seen])
    for _ in range(3):
        monitor.sample()
    summary = monitor.summary()
    assert summary["samples"] == 3
    assert summary["sm_mhz"] == {"min": 345.0, "median": 1900.0, "max": 1980.0}
    assert summary["clock_reasons"] == {"gpu_idle": 1, "sw_power_cap": 1}
    assert "failures" not in summary


def test_the_thread_samples_on_its_own_and_stops(fake_gpu, gpu_reading) -> None:
    gpu = fake_gpu(script=[RuntimeError("first one fails"), gpu_reading(processes=(process(THEIRS),))])
    before = threading.active_count()
    start = time.monotonic()
    with EnvironmentMonitor(
        resolve_device("cuda", gpu, environ={}), lambda: {OURS}, 0.001, monitor=gpu, pid_exists=lambda _: True
    ) as monitor:
        while gpu.reads < 5:
            time.sleep(0.001)
    assert monitor.intrusions_since(start, look=False) == ["foreign process python (pid 4242)"]
    assert monitor.summary()["failures"]["count"] == 1
    assert threading.active_count() == before


def test_on_a_cpu_the_load_is_recorded_and_nothing_intrudes() -> None:
    monitor = EnvironmentMonitor(resolve_device("cpu"))
    assert monitor.intrusions_since(0.0) == []
    assert set(monitor.summary()["load_average"]) == {"min", "median", "max"}


@pytest.mark.gpu
def test_a_real_intruder_is_seen_as_process_or_memory() -> None:
    import subprocess
    import sys

    hold = "import torch, sys; x = torch.zeros(2**28, device='cuda'); torch.cuda.synchronize(); print('here', flush=True); sys.stdin.read()"
    device = resolve_device("cuda")
    monitor = EnvironmentMonitor(device, lambda: {os.getpid()})
    monitor.sample()
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "here\n"
            time.sleep(3.0)
            intrusions = monitor.intrusions_since(0.0)
        finally:
            other.kill()
    assert any("foreign" in text for text in intrusions), monitor.summary()
