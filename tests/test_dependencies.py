"""A user's torch is left alone: dependencies are lower bounds, and CI runs the oldest and the newest."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = [text for name, texts in PROJECT["optional-dependencies"].items() if name != "dev" for text in texts]


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *EXTRAS])
def test_a_dependency_has_a_lower_bound_and_no_upper_one(text: str) -> None:
    assert [one.operator for one in Requirement(text).specifier] == [">="], "another bound would fight the torch that is installed"


def test_python_has_no_upper_bound_and_ci_runs_every_version_with_oldest_and_newest_torch() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "versions.yml").read_text())
    assert workflow["jobs"]["versions"]["strategy"]["matrix"] == {"python": ["3.11", "3.12", "3.13"], "torch": ["oldest", "newest"]}


def test_the_script_takes_oldest_or_newest_and_nothing_else(tmp_path: Path) -> None:
    """A `python` that records what it is asked: pip is called for torch first and alone."""
    python = tmp_path / "python"
    python.write_text(f'#!/usr/bin/env bash\nif [[ $1 == - ]]; then exec {sys.executable} "$@"; fi\necho "$*" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    script = ["env", f"PYTHON={python}", "bash", str(REPOSITORY / "ci" / "versions")]
    assert subprocess.run([*script, "other"], capture_output=True, check=False).returncode == 1
    assert not (tmp_path / "calls").exists()
    for which, first in (("oldest", "torch==2.11.*"), ("newest", "torch>=2.11")):
        (tmp_path / "calls").unlink(missing_ok=True)
        subprocess.run([*script, which], capture_output=True, check=True)
        calls = (tmp_path / "calls").read_text().splitlines()
        assert calls[0] == f"-m pip install --quiet --upgrade {first}"
        assert any(call.startswith("-m pytest") for call in calls)
