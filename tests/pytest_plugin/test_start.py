"""The plugin costs a session nothing that does not use it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fusebench.pytest_plugin import pytest_benchmark_scale_unit, require_histogram
from helpers.pytest_session import TESTS, Session

HEAVY = ("torch", "triton", "numpy", "scipy", "pandas", "pyarrow", "typer", "rich", "matplotlib")


def test_a_session_that_asks_for_nothing_imports_nothing_heavy(session: Session, project: Path) -> None:
    (project / "test_other.py").write_text(
        f"import sys\ndef test_imports():\n    assert not [name for name in {HEAVY} if name in sys.modules]\n"
        "    assert not [name for name in sys.modules if name.startswith('fusebench.runner')]\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "fusebench.pytest_plugin", "-p", "no:cacheprovider", "-q", "test_other.py"]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent / "harness")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fusebench" not in done.stdout.replace("fusebench.pytest_plugin", "")


def test_the_entry_point_has_the_modules_own_name() -> None:
    """So that `-p fusebench.pytest_plugin` beside an installed fusebench is one plugin and not two, which pytest refuses."""
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"fusebench.pytest_plugin": "fusebench.pytest_plugin"}


def test_help_names_the_options(session: Session) -> None:
    shown = session("--help").stdout
    for option in ("suite", "op", "kernel", "case", "device", "wait", "replicates", "rounds"):
        assert f"--fusebench-{option}" in shown
    markers = session("--markers").stdout
    assert "speed(min_speedup, over=None)" in markers
    assert "sol(min)" in markers


def test_a_histogram_that_cannot_be_drawn_is_refused_before_the_first_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-benchmark fails after the last test, when everything is measured."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pygal" else object())
    wanted = SimpleNamespace(getoption=lambda name, default: "hist")
    with pytest.raises(pytest.UsageError, match=r"needs pygal, not installed here: pip install 'pytest-benchmark\[histogram\]'"):
        require_histogram(cast("Any", wanted))
    require_histogram(cast("Any", SimpleNamespace(getoption=lambda name, default: default)))


def test_times_of_fusebench_are_shown_in_microseconds_unless_another_unit_is_asked_for() -> None:
    ours, other = [{"extra_info": {"time_us": 5e4}}], [{"extra_info": {}}]
    plain = cast("Any", SimpleNamespace(getoption=lambda name, default: default))
    asked = cast("Any", SimpleNamespace(getoption=lambda name, default: "ms"))
    assert pytest_benchmark_scale_unit(plain, "seconds", ours) == ("u", 1e6)
    for config, unit, benchmarks in ((plain, "operations", ours), (plain, "seconds", other), (asked, "seconds", ours)):
        assert pytest_benchmark_scale_unit(config, unit, benchmarks) is None, "pytest-benchmark chooses"
