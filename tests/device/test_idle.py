"""Each sign of company or of an unfit GPU is found when planted, and an idle GPU passes."""

from __future__ import annotations

import pytest

from fusebench.device import GpuProcess, idle_findings, require_idle, resolve_device
from fusebench.device.cpu_load import busiest_processes, load_warnings
from fusebench.errors import DeviceUnfitError
from fusebench.runner.run.precision import LOOKS
from fusebench.schema import ExitCode
from helpers.strangers import NOBODY

GIB = 2**30
INTRUDER = GpuProcess(pid=NOBODY, name="python train.py", used_bytes=4 * GIB, kind="compute")


def no_sleep(_: float) -> None:
    return None


def findings(monitor, own_pids=()):
    return idle_findings(resolve_device("cuda", monitor, environ={}), own_pids, monitor, sleep=no_sleep)


def kinds(monitor, own_pids=()):
    return [finding.kind for finding in findings(monitor, own_pids)]


def test_an_idle_gpu_has_no_findings(fake_gpu) -> None:
    assert findings(fake_gpu()) == []


def test_states_that_do_not_matter_are_no_findings(fake_gpu) -> None:
    harmless = ("gpu_idle", "applications_clocks_setting", "sw_power_cap")
    assert findings(fake_gpu(clock_reasons=harmless, compute_mode="exclusive_process", utilisation_percent=1, power_w=None)) == []
    assert findings(fake_gpu(memory_used_bytes=10 * 2**20)) == []


def test_a_foreign_process_is_named_with_pid_and_memory(fake_gpu) -> None:
    monitor = fake_gpu(processes=(INTRUDER,), memory_used_bytes=4 * GIB)
    (found,) = findings(monitor)
    assert found.kind == "process"
    assert f"python train.py (pid {NOBODY}, compute, 4.0 GiB)" in found.what
    assert kinds(monitor, own_pids={NOBODY}) == []


def test_a_process_seen_in_one_reading_only_is_found(fake_gpu, gpu_reading) -> None:
    assert kinds(fake_gpu(script=[gpu_reading(), gpu_reading(processes=(INTRUDER,)), gpu_reading()])) == ["process"]


def test_a_small_display_server_is_a_warning_and_a_large_one_is_not(fake_gpu) -> None:
    small = GpuProcess(pid=9, name="Xorg", used_bytes=4 * 2**20, kind="graphics")
    monitor = fake_gpu(processes=(small,), memory_used_bytes=4 * 2**20)
    device = resolve_device("cuda", monitor, environ={})
    (warning,) = require_idle(device, monitor=monitor, sleep=no_sleep)
    assert "Xorg (pid 9" in warning
    large = GpuProcess(pid=9, name="blender", used_bytes=GIB, kind="graphics")
    with pytest.raises(DeviceUnfitError, match="blender"):
        require_idle(device, monitor=fake_gpu(processes=(large,)), sleep=no_sleep)


def test_memory_in_use_without_a_process_is_company(fake_gpu) -> None:
    (found,) = findings(fake_gpu(memory_used_bytes=600 * 2**20))
    assert found.kind == "memory"
    assert "600 MiB" in found.what


def test_memory_beyond_the_listed_processes_is_company_too(fake_gpu) -> None:
    ours = GpuProcess(pid=77, name="worker", used_bytes=GIB, kind="compute")
    assert kinds(fake_gpu(processes=(ours,), memory_used_bytes=GIB + 9 * 2**20), own_pids={77}) == [], "driver overhead"
    assert kinds(fake_gpu(processes=(ours,), memory_used_bytes=2 * GIB), own_pids={77}) == ["memory"]


def test_the_drivers_own_memory_of_many_processes_is_no_company_and_a_context_beside_them_is(fake_gpu) -> None:
    """9 MiB for each process beyond its listed share, as on an H200, where a hidden context has at least 500 MiB."""
    ours = tuple(GpuProcess(pid=100 + number, name="worker", used_bytes=GIB, kind="compute") for number in range(LOOKS[-1]))
    pids = {process.pid for process in ours}
    explained = LOOKS[-1] * (GIB + 9 * 2**20)
    assert findings(fake_gpu(processes=ours, memory_used_bytes=explained), own_pids=pids) == []
    (found,) = findings(fake_gpu(processes=ours, memory_used_bytes=explained + 500 * 2**20), own_pids=pids)
    assert (
        f"{LOOKS[-1] * 9 + 500} MiB are in use on the GPU beyond what listed processes hold (more than {64 + LOOKS[-1] * 16} MiB)"
        in found.what
    )


def test_each_reading_is_judged_by_the_processes_that_it_lists(fake_gpu, gpu_reading) -> None:
    ours = tuple(GpuProcess(pid=100 + number, name="worker", used_bytes=0, kind="compute") for number in range(2))
    both = gpu_reading(processes=ours, memory_used_bytes=90 * 2**20)
    one = gpu_reading(processes=ours[:1], memory_used_bytes=90 * 2**20)
    assert kinds(fake_gpu(script=[both]), own_pids={100, 101}) == []
    (found,) = findings(fake_gpu(script=[both, one, both, one, both]), own_pids={100, 101})
    assert "90 MiB are in use" in found.what
    assert "more than 80 MiB" in found.what


def test_steady_utilisation_is_found_and_one_stale_reading_is_not(fake_gpu, gpu_reading) -> None:
    busy, quiet = gpu_reading(utilisation_percent=37), gpu_reading()
    assert kinds(fake_gpu(script=[busy])) == ["utilisation"]
    assert kinds(fake_gpu(script=[quiet, busy, quiet, busy, quiet])) == ["utilisation"]
    assert kinds(fake_gpu(script=[busy, quiet])) == []


@pytest.mark.parametrize("reason", ["hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "hw_slowdown", "sync_boost"])
def test_clocks_held_down_are_found(fake_gpu, reason) -> None:
    (found,) = findings(fake_gpu(clock_reasons=("gpu_idle", reason), temperature_c=91))
    assert found.kind == "slowdown"
    assert reason in found.what
    assert "91 C" in found.what


def test_prohibited_compute_mode_is_found(fake_gpu) -> None:
    assert kinds(fake_gpu(compute_mode="prohibited")) == ["compute_mode"]


@pytest.mark.parametrize("field", ["processes", "memory_used_bytes", "utilisation_percent"])
def test_what_cannot_be_read_is_not_idle(fake_gpu, field) -> None:
    (found,) = findings(fake_gpu(**{field: None, "unreadable": {field: "No Permission"}}))
    assert found.kind == "unreadable"
    assert "cannot tell" in found.what
    assert "No Permission" in found.what


def test_refusal_is_exit_3_with_who_and_what_to_do(fake_gpu) -> None:
    monitor = fake_gpu(processes=(INTRUDER,), memory_used_bytes=4 * GIB)
    with pytest.raises(DeviceUnfitError) as caught:
        require_idle(resolve_device("cuda", monitor, environ={}), monitor=monitor, sleep=no_sleep)
    assert caught.value.exit_code is ExitCode.DEVICE_UNFIT
    for part in ("NVIDIA H200", f"pid {NOBODY}", f"kill {NOBODY}", "--wait SECONDS", "--device"):
        assert part in str(caught.value)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def test_waiting_ends_when_the_intruder_leaves(fake_gpu, gpu_reading) -> None:
    time, told = Time(), []
    monitor = fake_gpu(script=[gpu_reading(processes=(INTRUDER,))] * 12 + [gpu_reading()])
    device = resolve_device("cuda", monitor, environ={})
    assert require_idle(device, wait_s=60, on_wait=told.append, monitor=monitor, sleep=time.sleep, clock=time.clock) == []
    assert len(told) == 1
    assert f"pid {NOBODY}" in told[0]


def test_waiting_is_bounded(fake_gpu) -> None:
    time, monitor = Time(), fake_gpu(processes=(INTRUDER,))
    with pytest.raises(DeviceUnfitError, match="after waiting 20 s"):
        require_idle(resolve_device("cuda", monitor, environ={}), wait_s=20, monitor=monitor, sleep=time.sleep, clock=time.clock)
    assert 20 <= time.now < 25


def test_what_waiting_cannot_mend_is_refused_at_once(fake_gpu) -> None:
    time, monitor = Time(), fake_gpu(compute_mode="prohibited")
    with pytest.raises(DeviceUnfitError, match="prohibited") as caught:
        require_idle(resolve_device("cuda", monitor, environ={}), wait_s=600, monitor=monitor, sleep=time.sleep, clock=time.clock)
    assert time.now < 10
    assert "--wait" not in str(caught.value)


def test_a_busy_cpu_is_a_warning_and_never_a_refusal() -> None:
    (warning,) = load_warnings(load=lambda: (1.5, 1.0, 1.0), cpu_count=2, processes=lambda: [("cc1plus", 77, 99.0), ("sshd", 1, 0.1)])
    assert "load average 1.5 on 2 CPUs" in warning
    assert "cc1plus (pid 77, 99 % of a CPU)" in warning
    assert "sshd" not in warning
    assert load_warnings(load=lambda: (0.1, 0.1, 0.1), cpu_count=2, processes=list) == []
    assert isinstance(require_idle(resolve_device("cpu")), list)


def test_our_own_processes_are_not_company() -> None:
    import os

    assert os.getpid() not in [pid for _, pid, _ in busiest_processes(watch_s=0.01)]
