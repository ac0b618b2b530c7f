"""Two runs never share a device; a dead holder blocks nobody."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys

import pytest

from fusebench.device import device_lock, resolve_device, wanted_by_others
from fusebench.device.lock import describe_holder, lock_path
from fusebench.errors import DeviceUnfitError

HOLD = """
import sys
from fusebench.device import device_lock, resolve_device
with device_lock(resolve_device("cpu")):
    print("held", flush=True)
    sys.stdin.read()
"""


WAIT = """
import sys
from fusebench.device import device_lock, resolve_device
with device_lock(resolve_device("cpu"), wait_s=30, on_wait=lambda text: print("waits", flush=True)):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_run():
    """A real process that holds the CPU's lock."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_run_is_refused_and_told_who_holds_the_device() -> None:
    device = resolve_device("cpu")
    with (
        another_run() as other,
        pytest.raises(DeviceUnfitError, match=f"in use by another fusebench run: pid {other.pid} .*--wait"),
        device_lock(device),
    ):
        pass


def test_a_killed_holder_does_not_block_and_its_note_is_replaced() -> None:
    device = resolve_device("cpu")
    with another_run() as other:
        other.kill()
        other.wait()
    note = lock_path(device).with_suffix(".json")
    assert json.loads(note.read_text())["pid"] == other.pid
    with device_lock(device):
        assert json.loads(note.read_text())["pid"] == os.getpid()
    assert not note.exists()


def test_a_note_of_a_dead_process_is_not_believed() -> None:
    device = resolve_device("cpu")
    with another_run() as other:
        note = lock_path(device).with_suffix(".json")
        stale = json.loads(note.read_text()) | {"started": 1.0}
        note.write_text(json.dumps(stale))
        with pytest.raises(DeviceUnfitError, match=f"not by the one that its note names .*pid {other.pid}.*has ended"), device_lock(device):
            pass
        note.write_text("{half a no")
        with pytest.raises(DeviceUnfitError, match="left no note"), device_lock(device):
            pass


@pytest.mark.parametrize("pid", [-3, 0, 2**31, 2**70])
def test_a_note_with_a_number_that_no_process_has_is_no_note(tmp_path, pid: int) -> None:
    note = tmp_path / "note.json"
    note.write_text(json.dumps({"pid": pid, "started": 1.0, "command": "x", "since": "2026-01-01T00:00:00+00:00", "host": platform.node()}))
    assert describe_holder(note) == "its holder left no note"


def test_waiting_takes_the_lock_when_the_other_run_ends() -> None:
    device = resolve_device("cpu")
    told = []
    with another_run() as other:

        def end_the_other(text: str) -> None:
            told.append(text)
            other.stdin.close()

        with device_lock(device, wait_s=60, on_wait=end_the_other):
            assert other.wait(timeout=60) == 0
    assert f"pid {other.pid}" in told[0]


def test_each_gpu_has_its_own_lock(fake_gpu, gpu_identity) -> None:
    monitor = fake_gpu(gpus=[gpu_identity(0, "GPU-a"), gpu_identity(1, "GPU-b")])
    first, second = (resolve_device(f"cuda:{i}", monitor, environ={}) for i in range(2))
    with device_lock(first), device_lock(second), pytest.raises(DeviceUnfitError, match=f"pid {os.getpid()}"), device_lock(first):
        pass
    with device_lock(first):
        pass


def test_an_unwritable_lock_folder_is_a_clear_refusal(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEBENCH_LOCK_DIR", str(tmp_path / "file" / "locks"))
    with pytest.raises(DeviceUnfitError, match="FUSEBENCH_LOCK_DIR"), device_lock(resolve_device("cpu")):
        pass


def test_whoever_waits_is_next_and_nobody_passes_it() -> None:
    device = resolve_device("cpu")
    with device_lock(device):
        assert not wanted_by_others(device)
        waiting = subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout.readline() == "waits\n"
        while not wanted_by_others(device):
            pass
    try:
        # A server that takes the lock again at once, as often as it likes, does not get it before the one that waits.
        with pytest.raises(DeviceUnfitError, match=f"pid {waiting.pid} "), device_lock(device):
            pass
        assert waiting.stdout.readline() == "held\n"
        assert wanted_by_others(device)
        waiting.kill()
        waiting.wait()
        with device_lock(device, wait_s=5):
            assert not wanted_by_others(device)
        assert [one.name for one in lock_path(device).parent.iterdir() if "waits" in one.name] == []
    finally:
        waiting.kill()


def test_a_ticket_of_a_killed_process_holds_nobody_up() -> None:
    device = resolve_device("cpu")
    with device_lock(device):
        waiting = subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while not wanted_by_others(device):
            pass
        waiting.kill()
        waiting.wait()
        assert not wanted_by_others(device)
    with device_lock(device):
        pass
