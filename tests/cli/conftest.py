"""A toy project as the current folder, and the command line to run in it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from fusebench.device import idle_findings
from fusebench.device import nvml as nvml_backend
from fusebench.device.toolchain import TorchBuild
from fusebench.report.run import pages

SPEEDUP_PNG = pages.speedup_png
TOY_PROJECT = Path(__file__).parents[1] / "toy_project"


@pytest.fixture(autouse=True)
def unwatched_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches this machine's other processes, for a fifth of a second before each measurement on its CPU."""
    monkeypatch.setattr("fusebench.device.cpu_load.busiest_processes", lambda: [])


@pytest.fixture(autouse=True)
def forked(forked_workers: None) -> None:
    """Worker processes, and those that list kernels, are forked; `spawned_workers` gives a test new interpreters."""


@pytest.fixture(autouse=True)
def own_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Listings of kernels are kept in a folder of the test's own, and not among the user's."""
    folder = tmp_path / "listings"
    monkeypatch.setattr("fusebench.cli.shared.kernel_listing.entries_folder", lambda: folder)
    return folder


PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f80f0001010100b138f6140000000049454e44ae426082"
)
"""A PNG of one pixel."""


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture beside a run's record is one pixel: tests/report draws them, and `drawn` gives a test real ones."""
    monkeypatch.setattr("fusebench.report.run.pages.speedup_png", lambda run: PICTURE)


@pytest.fixture
def drawn(undrawn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures as users get them."""
    monkeypatch.setattr("fusebench.report.run.pages.speedup_png", SPEEDUP_PNG)


@pytest.fixture
def toy_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: kernels `scale/split@1` and `scale/fast@2`, suites `scale` and `models/toy` of two cases each."""
    root = tmp_path / "project"
    shutil.copytree(TOY_PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, which is the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[tool.fusebench]\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def keep(project_folder: Path, synthetic: ModuleType) -> Callable[..., Path]:
    """`keep(**fields)`: write a synthetic run into the project's results/runs and return its folder."""
    from fusebench.store.run_folder import write_run

    def write(**fields: object) -> Path:
        run = synthetic.make_run(**fields)
        return write_run(project_folder / "results" / "runs", run, synthetic.make_samples(run))

    return write


@pytest.fixture
def fusebench() -> Callable[..., Any]:
    """`fusebench("list", "ops")`: run the command line in this process; the result has exit_code, stdout and stderr."""
    from fusebench.cli.main import app

    def run(*arguments: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["fusebench", *arguments])  # records and messages repeat the command line
            return CliRunner().invoke(app, list(arguments), prog_name="fusebench")

    return run


@pytest.fixture
def with_gpu(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`with_gpu(**changes)`: this machine has an H200 whose reading has these changes, and a torch for it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(idle_findings.__kwdefaults__, "sleep", lambda _: None)
    monkeypatch.setattr("fusebench.device.toolchain.torch_build", lambda: TorchBuild("2.11.0", "13.0"))

    def install(**changes: object) -> Any:
        monitor = fake_gpu(**changes)
        monkeypatch.setattr(nvml_backend, "open_monitor", lambda: monitor)
        return monitor

    install()
    return install
