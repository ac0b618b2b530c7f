"""The fingerprint that a run records."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

from fusebench.device import environment_of, resolve_device, triton_programs
from fusebench.device.cpu_process import expected_settings
from fusebench.device.triton_programs import ASSEMBLER_VARIABLES, program_version, tool
from fusebench.errors import UsageError
from fusebench.schema import Environment


def git(folder, *arguments: str) -> None:
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=os.environ | identity)


@pytest.fixture
def checkout(tmp_path):
    """A git checkout with one commit."""
    git(tmp_path, "init", "-q")
    (tmp_path / "op.py").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_gpu_fingerprint_names_device_driver_and_versions(fake_gpu, tmp_path) -> None:
    monitor = fake_gpu(power_w=None, unreadable={"power_w": "Not Supported"})
    found = environment_of(resolve_device("cuda", monitor, environ={}), tmp_path, monitor)
    assert (found.device, found.device_name, found.driver, found.cuda) == ("cuda", "NVIDIA H200", "580.159.03", "13.0")
    assert found.torch
    assert found.triton
    assert found.ptxas == program_version(tool("ptxas"))
    assert found.cpu_process == ""
    assert found.ptxas_blackwell == program_version(tool("ptxas-blackwell")), "which of the two is used depends on Triton's version"
    assert found.state["at_start"]["sm_mhz"] == 345
    assert found.state["unreadable"]["power_w"] == "Not Supported"
    assert found.memory_gb_per_s == pytest.approx(4814.3, abs=0.1), "3201 MHz x 6016 bits x 2 transfers"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Environment) == found


@pytest.mark.parametrize("missing", ["max_mem_mhz", "memory_bus_bits"])
def test_a_memory_without_clock_or_width_has_no_known_peak(fake_gpu, tmp_path, missing: str) -> None:
    monitor = fake_gpu(**{missing: None})
    assert environment_of(resolve_device("cuda", monitor, environ={}), tmp_path, monitor).memory_gb_per_s is None


@pytest.mark.parametrize("variable", ASSEMBLER_VARIABLES.values())
@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_an_assembler_that_is_named_and_does_not_run_is_refused(fake_gpu, tmp_path, monkeypatch, variable: str, kind: str) -> None:
    """Triton would take its own without a word, or fail in every kernel."""
    monitor = fake_gpu()
    device = resolve_device("cuda", monitor, environ={})
    named = tmp_path if kind == "folder" else tmp_path / "gone"
    monkeypatch.setenv(variable, str(named))
    with pytest.raises(UsageError, match=rf"^{variable} names no assembler that runs: .*{named.name} --version failed.*; name a ptxas"):
        environment_of(device, tmp_path, monitor)
    found = environment_of(resolve_device("cpu"), tmp_path)
    assert (found.ptxas, found.ptxas_blackwell) == ("", ""), "a CPU assembles nothing"
    assert found.cpu_process == expected_settings()


def test_an_assembler_of_tritons_that_does_not_run_is_recorded_as_unreadable(fake_gpu, tmp_path, monkeypatch) -> None:
    monitor = fake_gpu()
    device = resolve_device("cuda", monitor, environ={})
    for variable in ASSEMBLER_VARIABLES.values():
        monkeypatch.setenv(variable, "")  # set and empty is unset, as in Triton
    monkeypatch.setattr(triton_programs, "tool", lambda name: tmp_path / name)
    found = environment_of(device, tmp_path, monitor)
    assert (found.ptxas, found.ptxas_blackwell) == ("", "")
    assert "install triton again" in found.state["unreadable"]["ptxas-blackwell"]


def test_the_commit_and_its_dirtiness_are_recorded(checkout) -> None:
    device = resolve_device("cpu")
    clean = environment_of(device, checkout)
    assert len(clean.git_commit) == 40
    assert not clean.git_dirty
    (checkout / "new_kernel.py").write_text("")
    dirty = environment_of(device, checkout)
    assert dirty.git_dirty, "a result of an uncommitted kernel file cannot be reproduced from the commit"
    assert dirty.git_commit == clean.git_commit


def test_records_in_the_project_make_no_difference_to_its_commit(checkout) -> None:
    """Planted defects: in a new project, whose .gitignore nobody wrote, a killed run's own journal kept it from being gone on with; after
    `promote`, until the baseline was committed, every run counted as one of changed code, and none could join the baseline."""
    device = resolve_device("cpu")
    for name in ("runs/.20260901T030000Z_1a2b3c.unfinished", "catalogue/v1", "baselines/nvidia_h200", "calibration", "interference"):
        folder = f"results/{name}"
        (checkout / folder).mkdir(parents=True)
        (checkout / folder / "run.json").write_text("{}")
    assert not environment_of(device, checkout).git_dirty
    (checkout / "results" / "helper.py").write_text("")
    assert environment_of(device, checkout).git_dirty


def test_a_commit_named_in_the_environment_stands_in_for_missing_history(tmp_path, monkeypatch) -> None:
    device = resolve_device("cpu")
    monkeypatch.delenv("FUSEBENCH_COMMIT", raising=False)
    assert environment_of(device, tmp_path).git_commit == ""
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123abc")
    named = environment_of(device, tmp_path)
    assert (named.git_commit, named.git_dirty) == ("0123abc", False)


def test_without_a_checkout_or_without_git_the_reason_is_recorded(tmp_path, monkeypatch) -> None:
    device = resolve_device("cpu")
    outside = environment_of(device, tmp_path)
    assert (outside.git_commit, outside.git_dirty) == ("", False)
    assert "not a git repository" in outside.state["unreadable"]["git"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git" in environment_of(device, tmp_path).state["unreadable"]["git"]
