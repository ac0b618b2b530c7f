"""What `fusebench ncu` needs of a machine: a GPU that is free and looked at once, a driver that permits counting, an Nsight Compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome

from fusebench.cli.shared.progress import PlainReporter
from fusebench.device import device_lock, resolve_device
from fusebench.device import nvml as nvml_backend
from fusebench.device.nsight import probe_nsight
from fusebench.device.readings import GpuUnavailableError
from fusebench.runner.count import device as ncu_device
from fusebench.schema import ExitCode
from helpers import ncu_bench
from helpers.ncu_bench import SELECTION
from helpers.strangers import NOBODY, STRANGER

Fusebench = Callable[..., Outcome]

project = ncu_bench.project


def test_a_refusal_by_the_driver_is_exit_code_3_and_leaves_nothing(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    fake_ncu.behave(forbidden=True)
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert "ERR_NVGPUCTRPERM" in outcome.stderr
    assert "NVreg_RestrictProfilingToAdminUsers=0" in outcome.stderr
    assert not (project / "results").exists()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("named", ["missing", "old"])
def test_an_ncu_that_is_missing_or_old_is_exit_code_3(
    fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch, fake_ncu: Any, named: str
) -> None:
    if named == "missing":
        monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    else:
        fake_ncu.behave(version="2023.1.0.0")
    outcome = fusebench(*SELECTION)
    assert outcome.exit_code == ExitCode.DEVICE_UNFIT
    assert ("no program that can be run" if named == "missing" else "2023.1.0.0") in outcome.stderr


@pytest.mark.usefixtures("project")
def test_a_busy_or_locked_device_is_exit_code_3(fusebench: Fusebench, with_gpu: Any, fake_ncu: Any) -> None:
    with device_lock(resolve_device("cuda")):
        outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, "in use by another fusebench run" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)
    with_gpu(processes=(STRANGER,))
    outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, f"train (pid {NOBODY}" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)
    assert all(call["arguments"] == ["--version"] for call in fake_ncu.calls), "nothing was captured"


@pytest.mark.usefixtures("project")
def test_a_mistake_on_the_command_line_is_told_before_what_the_machine_lacks(
    fusebench: Fusebench, with_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(processes=(STRANGER,))
    monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    outcome = fusebench("ncu", "--suite", "scael")
    assert (outcome.exit_code, "did you mean 'scale'?" in outcome.stderr) == (ExitCode.USAGE, True)


@pytest.mark.usefixtures("project")
def test_a_device_seen_idle_while_the_kernels_loaded_is_not_looked_at_again(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    look = ncu_device.idle_findings
    monkeypatch.setattr(ncu_device, "idle_findings", lambda *one: looks.append(one) or look(*one))
    monkeypatch.setattr(ncu_device, "require_idle", lambda *_, **__: pytest.fail("looked at again"))
    outcome = fusebench(*SELECTION, "--kernel", "twin@1")
    assert (outcome.exit_code, len(looks)) == (ExitCode.PASS, 1), outcome.output


@pytest.mark.usefixtures("project")
def test_without_a_gpu_it_is_exit_code_3(fusebench: Fusebench, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = fusebench(*SELECTION, "--device", "cpu")
    assert (outcome.exit_code, "choose one with --device cuda:N" in outcome.stderr) == (ExitCode.DEVICE_UNFIT, True)

    def absent() -> None:
        raise GpuUnavailableError("no NVIDIA driver library is installed", "install the driver")

    monkeypatch.setattr(nvml_backend, "open_monitor", absent)
    outcome = fusebench(*SELECTION)
    assert (outcome.exit_code, "no NVIDIA driver library is installed; install the driver\n" in outcome.stderr) == (3, True)


@pytest.mark.usefixtures("with_gpu", "fake_ncu")
def test_a_device_that_was_waited_for_or_not_seen_idle_is_looked_at_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[float] = []
    monkeypatch.setattr(ncu_device, "require_idle", lambda device, *, wait_s, on_wait: again.append(wait_s) or ["a warning"])
    fit = ncu_device.FitDevice(resolve_device("cuda"), probe_nsight(), seen_idle=True)

    @contextmanager
    def lock(device: object, *, wait_s: float, on_wait: Callable[[str], None]) -> Iterator[None]:
        if wait_s:
            on_wait("waiting")
        yield

    monkeypatch.setattr(ncu_device, "device_lock", lock)
    for one, wait_s, expected in ((fit, 0.0, []), (fit, 5.0, [5.0]), (replace(fit, seen_idle=False), 0.0, [0.0])):
        again.clear()
        with ncu_device.hold_for_counters(one, PlainReporter(), wait_s=wait_s) as warnings:
            assert (again, warnings) == (expected, ["a warning"] if expected else [])
