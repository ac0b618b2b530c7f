"""A project, a GPU that is none and a script for Nsight Compute, for the tests of `ncu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusebench.counters.records import CaptureStatus, CounterRun
from fusebench.store.counter_folder import read_counters

SELECTION = ["ncu", "--suite", "scale", "--case", "even"]

KERNEL = """
import os

from fusebench import kernel


@kernel("scale", "{name}", version={version}, role="fused", language="cuda")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""


def add_kernel(project: Path, name: str, *, version: int = 1, body: str = "pass") -> None:
    text = KERNEL.replace("{name}", name).replace("{version}", str(version)).replace("{body}", body)
    (project / "kernels" / "scale" / f"{name}_v{version}.py").write_text(text)


@pytest.fixture
def project(toy_project: Path, with_gpu: Any, fake_ncu: Any) -> Path:
    """The toy project with two versions of `scale/twin`, on a machine with a GPU and the script."""
    add_kernel(toy_project, "twin", version=1)
    add_kernel(toy_project, "twin", version=2)
    fake_ncu.behave(kernels={"scale/twin@2": {"rows": [1]}})
    return toy_project


def only_run(project: Path) -> Path:
    (folder,) = (project / "results" / "runs").iterdir()
    return folder


def record(project: Path) -> CounterRun:
    return read_counters(only_run(project))


def statuses(run: CounterRun) -> dict[str, CaptureStatus]:
    return {capture.kernel: capture.status for capture in run.captures}
