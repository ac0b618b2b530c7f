"""The context that the driver makes while torch is imported."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from fusebench.judge.candidate.early_context import begin_context


class Driver:
    """Remembers what it was asked for, and fails at the call named `fails`."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.asked = fails, list[str]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            index = next((one for one in arguments if isinstance(one, int)), "")
            self.asked.append(f"{name} {index}".strip())
            return int(name == self.fails)

        return call


@pytest.mark.parametrize(
    ("device", "fails", "asked"),
    [
        ("cuda:3", "", ["cuInit 0", "cuDeviceGet 3", "cuDevicePrimaryCtxRetain"]),
        ("cuda", "", ["cuInit 0", "cuDeviceGet 0", "cuDevicePrimaryCtxRetain"]),
        ("cuda:0", "cuInit", ["cuInit 0"]),
        ("cuda:9", "cuDeviceGet", ["cuInit 0", "cuDeviceGet 9"]),
    ],
)
def test_the_driver_makes_the_context_of_the_device(monkeypatch: pytest.MonkeyPatch, device: str, fails: str, asked: list[str]) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    driver = Driver(fails)
    begin_context(device, lambda name: driver).join()
    assert driver.asked == asked


def test_without_a_driver_torch_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    begin_context("cuda:0", lambda name: ctypes.CDLL("libfusebench_planted.so")).join()
