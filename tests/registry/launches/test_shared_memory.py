"""Dynamic shared memory: the kernel is given leave for it once, and plain and repeated launches ask for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusebench.registry import nvrtc

SOURCE = nvrtc.KernelSource(Path("k.cu"), "k", ())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU that is not there: notes what launches ask of it. `status` is its answer."""
    found = SimpleNamespace(status=0, allowed=[], launched=[], cuGetErrorName=lambda *_: 1, cuGetErrorString=lambda *_: 1)

    def allow(attribute: int, value: Any, handle: Any, device: Any) -> int:
        found.allowed.append((attribute, value.value, handle.value, device.value))
        return int(found.status)

    found.cuKernelSetAttribute = allow
    core = SimpleNamespace(
        LaunchConfig=SimpleNamespace, launch=lambda stream, config, kernel, *values: found.launched.append((config.shmem_size, values)),
        Stream=SimpleNamespace(from_handle=lambda handle: handle),
    )  # fmt: skip
    loaded = nvrtc._Loaded(SimpleNamespace(handle=77), SimpleNamespace(code=b""))
    monkeypatch.setattr(nvrtc, "_core", lambda: core)
    monkeypatch.setattr(nvrtc, "_loaded", lambda source, device: loaded)
    monkeypatch.setattr(nvrtc, "driver", lambda: found)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    return found


def launch(shared_bytes: int) -> None:
    nvrtc.launch(SOURCE, grid=1, block=32, device_index=2, arguments=(3,), shared_bytes=shared_bytes)


def test_a_kernel_is_given_leave_once(driver: Any) -> None:
    launch(100_000)
    launch(100_000)
    assert driver.allowed == [(nvrtc.MAX_DYNAMIC_SHARED_SIZE_BYTES, 100_000, 77, 2)]
    assert driver.launched == [(100_000, (3,))] * 2


def test_leave_is_given_below_48_kb_too_of_which_the_kernel_may_have_a_part_itself(driver: Any) -> None:
    """On an H200 a launch with 48 KB was refused, of a kernel with 256 bytes of its own."""
    launch(0)
    assert driver.allowed == []
    for shared_bytes in (48 * 1024, 100_000, 48 * 1024):
        launch(shared_bytes)
    assert [asked[1] for asked in driver.allowed] == [48 * 1024, 100_000]


def test_a_refusal_names_the_kernel_and_the_bytes(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.status = 1
    monkeypatch.setattr(nvrtc, "described_status", lambda status: f"CUDA_ERROR_INVALID_VALUE ({status})")
    with pytest.raises(RuntimeError, match=r"k: the driver does not give a block 100000 bytes .* device 2: CUDA_ERROR_INVALID_VALUE \(1\)"):
        launch(100_000)
    assert driver.launched == []
