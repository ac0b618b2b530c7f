"""The plugin on a GPU: device times of suites and of functions, through pytest-benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.pytest_session import Session

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

OTHERS = """
# Other processes of this test run hold idle contexts on the GPU, which a measurement refuses; tests/device tests that it does.
from fusebench.device import EnvironmentMonitor
from fusebench.pytest_plugin import measuring

measuring.idle_findings = lambda *_: []
measuring.require_idle = lambda *_, **__: []
EnvironmentMonitor.intrusions_since = lambda self, since: ()
"""

FUNCTIONS = """
import time

import pytest
import torch


def chain(x, y):
    return ((x + y) * 2).relu_()


def late(x):
    time.sleep(0.002)
    return x + 1


def inputs():
    return torch.randn(2, 1 << 22, device="cuda")


def test_add(gpu_benchmark):
    x, y = inputs()
    assert torch.equal(gpu_benchmark(torch.add, x, y), x + y)


@pytest.mark.speed(min_speedup=1.2, over=chain)
@pytest.mark.sol(min=0.2)
def test_faster(gpu_benchmark):
    gpu_benchmark(torch.add, *inputs())


@pytest.mark.speed(min_speedup=1.2, over=torch.add)
def test_slower(gpu_benchmark):
    gpu_benchmark(chain, *inputs())


def test_in_place(gpu_benchmark):
    qkv = torch.randn(64, 3, 4096, device="cuda")
    q, k = qkv[:, 0], qkv[:, 1]
    before = q.clone()
    gpu_benchmark(torch.Tensor.add_, q, k)
    assert torch.equal(q, before + k)


def test_late(gpu_benchmark):
    gpu_benchmark(late, inputs()[0])
"""


def stored(project: Path) -> dict[str, dict[str, Any]]:
    """By name of a test, its entry in pytest-benchmark's document."""
    return {one["name"]: one for one in json.loads((project / "out.json").read_text())["benchmarks"]}


def test_a_suites_kernels_get_device_times(session: Session, project: Path) -> None:
    (project / "conftest.py").write_text(OTHERS)
    done = session("--fusebench-suite=scale", "--fusebench-case=even", "--benchmark-json=out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = stored(project)
    assert set(found) == {f"scale/{kernel}[even]" for kernel in ("fast@2", "plain@1", "split@1")}, done.stdout
    for one in found.values():
        info = one["extra_info"]
        assert info["timer"] in ("cupti", "cuda_events")
        assert info["cache"] == "cold"
        assert info["sol"] > 0
        assert min(one["stats"]["data"]) * 1e6 <= info["time_us"] <= max(one["stats"]["data"]) * 1e6
    assert found["scale/fast@2[even]"]["extra_info"]["over"] == "scale/split@1"
    machine = json.loads((project / "out.json").read_text())["machine_info"]["fusebench"]
    assert machine["driver"]
    assert machine["device"] == found["scale/fast@2[even]"]["extra_info"]["device"]


def test_functions_get_device_times_and_markers_judge_them(session: Session, project: Path) -> None:
    (project / "conftest.py").write_text(OTHERS)
    (project / "test_mine.py").write_text(FUNCTIONS)
    # Several placements: an interval over two says too little to fail a test.
    done = session("test_mine.py", "--benchmark-json=out.json", "--fusebench-replicates=6", "--fusebench-rounds=6")
    shown = done.stdout + done.stderr
    assert "4 passed" in done.stdout, shown
    assert "FAILED test_mine.py::test_slower" in done.stdout, shown
    assert "test_slower is slower than speed(min_speedup=1.2) allows" in done.stdout
    assert "6 placements" in done.stdout
    found = stored(project)
    info = {name: one["extra_info"] for name, one in found.items()}
    assert info["test_add"]["gb_per_s"] * info["test_add"]["time_us"] * 1e3 == pytest.approx(3 * 4 * 2**22)
    assert not any("not_cold" in one for one in info.values()), info
    if info["test_add"]["timer"] == "cupti":
        assert (info["test_add"]["launches"], info["test_slower"]["launches"]) == (1, 3)
        assert info["test_late"]["time_us"] < 2000, "the time that the host sleeps is not the device's"
