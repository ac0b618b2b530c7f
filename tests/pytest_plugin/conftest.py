"""Sessions of pytest with the plugin, each a forked process of its own, in a copy of the toy project."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.forked_workers import run_module
from helpers.pytest_session import PLAIN, TESTS, Session

QUICK = ("--fusebench-replicates=2", "--fusebench-rounds=2")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The toy project with `scale/plain@1`, which runs on a CPU."""
    root = tmp_path / "project"
    shutil.copytree(TESTS / "toy_project", root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "kernels" / "scale" / "plain.py").write_text(PLAIN)
    return root


@pytest.fixture
def session(project: Path) -> Session:
    """`session("--fusebench-suite=scale")`: run pytest in the project, with few placements and rounds."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        # By name and not by its entry point: the sources under test need not be the installed ones.
        # No plugin for unraisable errors: it would collect garbage five times in all that the forked process imported.
        plugins = ["-p", "fusebench.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        command = ["pytest", *plugins, "-rA", *QUICK, *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        path = os.pathsep.join(filter(None, [str(TESTS.parent / "harness"), os.environ.get("PYTHONPATH")]))
        environment |= {"PYTHONPATH": path, "COLUMNS": "200", **(env or {})}
        return run_module(command, environment, project)

    return run
