"""A project with runs in it, for the tests of the commands that read runs; these load this file by its path."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module tests/synthetic.py: runs and samples that no device made."""
    spec = importlib.util.spec_from_file_location("fusebench_synthetic", Path(__file__).parents[1] / "synthetic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
