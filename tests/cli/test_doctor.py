"""`fusebench doctor`: exit 0 when the chosen device can be measured on, 3 when not, and a remedy for each "no"."""

from __future__ import annotations

import json
import py_compile
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from fusebench.cli.doctor_command import doctor
from fusebench.device import device_lock, doctor_software, idle_findings, resolve_device
from fusebench.device import nvml as nvml_backend
from fusebench.device.doctor_software import bytecode_finding
from fusebench.device.readings import GpuUnavailableError
from fusebench.device.toolchain import Requirement, TorchBuild
from helpers.strangers import NOBODY, STRANGER

APP = typer.Typer()
APP.command()(doctor)


def run(*arguments: str):
    """(exit code, JSON document) of `fusebench doctor --json …`."""
    result = CliRunner().invoke(APP, [*arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def named(document, name: str):
    return [finding for finding in document["findings"] if finding["name"] == name]


@pytest.fixture(autouse=True)
def quick_and_reproducible(monkeypatch):
    """No GPU, no waiting between samples, a torch for CUDA."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(idle_findings.__kwdefaults__, "sleep", lambda _: None)
    monkeypatch.setattr("fusebench.device.doctor.load_warnings", list)
    monkeypatch.setattr(doctor_software, "torch_build", lambda: TorchBuild("2.11.0", "13.0"))

    def absent():
        raise GpuUnavailableError("no NVIDIA driver library (libnvidia-ml.so.1) is installed", "install the driver")

    monkeypatch.setattr(nvml_backend, "open_monitor", absent)


@pytest.fixture
def with_gpu(fake_gpu, monkeypatch):
    """`with_gpu(**changes)`: this machine has an H200 whose reading has these changes."""

    def install(**changes):
        monitor = fake_gpu(**changes)
        monkeypatch.setattr(nvml_backend, "open_monitor", lambda: monitor)
        return monitor

    return install


def test_a_machine_without_a_gpu_is_fit_for_cpu_runs() -> None:
    code, document = run()
    assert (code, document["fit"], document["device"]["kind"]) == (0, True, "cpu")
    (device,) = named(document, "device")
    assert device["status"] == "warn"
    assert "no NVIDIA driver library" in device["found"]


def test_asking_for_a_gpu_that_is_not_there_is_exit_3_with_a_remedy() -> None:
    code, document = run("--device", "cuda")
    assert (code, document["exit_code"], document["fit"]) == (3, 3, False)
    (device,) = named(document, "device")
    assert (device["status"], device["remedy"]) == ("no", "install the driver, or use --device cpu")


def test_an_idle_gpu_is_fit(with_gpu) -> None:
    with_gpu()
    code, document = run("--device", "cuda")
    assert code == 0, document


PLANTED = {
    "process": ({"processes": (STRANGER,)}, "idle", f"train (pid {NOBODY}"),
    "memory": ({"memory_used_bytes": 2**30}, "idle", "1.0 GiB"),
    "utilisation": ({"utilisation_percent": 80}, "idle", "80 % busy"),
    "compute mode": ({"compute_mode": "prohibited"}, "idle", "prohibited"),
    "slowdown": ({"clock_reasons": ("hw_thermal_slowdown",)}, "clocks", "hw_thermal_slowdown"),
    "unreadable": ({"processes": None, "unreadable": {"processes": "No Permission"}}, "NVML", "No Permission"),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_each_planted_defect_is_a_no_with_a_remedy_and_exit_3(with_gpu, defect) -> None:
    changes, name, text = PLANTED[defect]
    with_gpu(**changes)
    code, document = run()
    assert code == 3
    refused = [finding for finding in document["findings"] if finding["status"] == "no"]
    assert [finding["name"] for finding in refused] == [name]
    assert text in refused[0]["found"]
    assert refused[0]["remedy"]


def test_a_held_lock_is_a_no() -> None:
    with device_lock(resolve_device("cpu")):
        code, document = run("--device", "cpu")
    assert code == 3
    assert "another fusebench run" in named(document, "lock")[0]["found"]


def test_a_cpu_build_of_torch_cannot_measure_a_gpu(with_gpu, monkeypatch) -> None:
    with_gpu()
    monkeypatch.setattr(doctor_software, "torch_build", lambda: TorchBuild("2.13.0+cpu", ""))
    code, document = run()
    assert code == 3
    assert named(document, "torch")[0]["status"] == "no"
    assert run("--device", "cpu")[0] == 0


def test_an_assembler_that_is_named_and_does_not_run_is_a_no(with_gpu, monkeypatch, tmp_path) -> None:
    with_gpu()
    (found,) = named(run("--device", "cuda")[1], "assembler")
    assert found["status"] == "ok"
    assert "ptxas-blackwell" in found["found"]
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "gone"))
    code, document = run("--device", "cuda")
    (found,) = named(document, "assembler")
    assert (code, found["status"]) == (3, "no")
    assert found["found"].startswith("TRITON_PTXAS_PATH names no assembler that runs")
    assert found["remedy"] == "name a ptxas that does, or unset it for Triton's own"
    assert found["remedy"] not in found["found"]


def test_an_assembler_of_tritons_that_does_not_run_is_a_warning(with_gpu, monkeypatch, tmp_path) -> None:
    with_gpu()
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.setattr("fusebench.device.triton_programs.tool", lambda name: tmp_path / name)
    code, document = run("--device", "cuda")
    (found,) = named(document, "assembler")
    assert (code, found["status"]) == (0, "warn")
    assert f"{tmp_path / 'ptxas'} --version failed" in found["found"]
    assert "install triton" not in found["found"]
    assert found["remedy"] == "install triton again; records will lack the assembler's version"


def test_packages_without_bytecode_are_a_warning(tmp_path) -> None:
    for package in ("torch", "triton"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    py_compile.compile(str(tmp_path / "torch" / "__init__.py"))
    found = bytecode_finding([tmp_path, tmp_path])
    assert (found.status, found.remedy) == (
        "warn",
        shlex.join([sys.executable, "-m", "compileall", "-q", "-j", "0", str(tmp_path / "triton")]),
    )
    assert str(tmp_path / "triton" / "__init__.py") in found.found
    subprocess.run(shlex.split(found.remedy), check=True)
    assert bytecode_finding([tmp_path]).status == "ok"


def test_a_package_outside_its_range_is_a_no(monkeypatch) -> None:
    old = Requirement(name="triton", wanted=">=3.6", found="2.0", met=False)
    monkeypatch.setattr(doctor_software, "requirements", lambda: [old])
    code, document = run("--device", "cpu")
    assert code == 3
    assert named(document, "triton")[0]["remedy"] == "pip install 'triton>=3.6'"


def test_optional_tools_that_are_missing_are_warnings(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(doctor_software, "distribution_version", lambda _: "")
    code, document = run("--device", "cpu")
    assert code == 0
    assert named(document, "C++ compiler")[0]["status"] == "warn"
    assert "fusebench[gpu]" in named(document, "CUDA C++")[0]["remedy"]


def test_the_project_and_its_folders_are_found_or_said_to_be_missing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no [tool.fusebench]" in named(run("--device", "cpu")[1], "project")[0]["found"]
    (tmp_path / "pyproject.toml").write_text("[tool.fusebench]\n")
    (tmp_path / "kernels" / "op").mkdir(parents=True)
    (tmp_path / "kernels" / "op" / "op.py").write_text("")
    _, document = run("--device", "cpu")
    assert named(document, "project")[0] == {"name": "project", "status": "ok", "found": str(tmp_path), "remedy": ""}
    assert named(document, "kernels")[0]["status"] == "ok"
    assert "no folder suites/" in named(document, "suites")[0]["found"]


def test_results_that_cannot_be_written_are_a_no(tmp_path, monkeypatch) -> None:
    def refuse(**_):
        raise OSError("Read-only file system")

    monkeypatch.setattr(doctor_software.tempfile, "TemporaryFile", refuse)
    code, document = run("--device", "cpu")
    assert code == 3
    assert "Read-only" in named(document, "results")[0]["found"]


def test_the_table_gives_each_no_its_remedy_and_the_verdict(with_gpu, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with_gpu(compute_mode="prohibited")
    result = CliRunner().invoke(APP, [])
    assert result.exit_code == 3
    assert "nvidia-smi -c DEFAULT" in result.stdout
    assert "Not fit to measure (idle)" in result.stdout
    result = CliRunner().invoke(APP, ["--device", "cpu"])
    assert result.exit_code == 0
    assert "Fit to measure on" in result.stdout


@pytest.mark.parametrize("arguments", [["--device", "cuda:x"]])
def test_a_bad_device_is_a_usage_error(arguments) -> None:
    result = CliRunner().invoke(APP, arguments)
    assert "expected auto, cpu, cuda or cuda:N" in str(result.exception)
