"""docs/suites.md tells the truth: its example is a suite, its commands run, its error messages are the real ones."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app

REPOSITORY = Path(__file__).parents[1]
GUIDE = (REPOSITORY / "docs" / "suites.md").read_text()
EXAMPLE = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[0]
COMMANDS = re.findall(r"^\$ fusebench (.*)$", GUIDE, re.MULTILINE)
ERRORS = re.findall(r"^error: .*$", GUIDE, re.MULTILINE)

SWEEP = next(block for block in re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL) if "my_sweep" in block)
PYTHON = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)

# What was mistyped in the example to get each of the guide's messages, in their order.
MISTAKES = [("layout =", "rope_dim = 256, layout ="), ("weight =", "wieght ="), ('"qknorm_rope"', '"qknorm_rop"')]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_guide_runs(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(REPOSITORY)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert result.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one op, whose one suite is the guide's example."""
    (tmp_path / "pyproject.toml").write_text("[tool.fusebench]\n")
    op = Path("kernels") / "qknorm_rope"
    shutil.copytree(REPOSITORY / op, tmp_path / op, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "my_model.toml").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_the_guides_example_is_a_suite() -> None:
    result = CliRunner().invoke(app, ["list", "cases", "--suite", "my_model"])
    assert result.exit_code == 0, result.output
    assert "qk_image" in result.stdout


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_the_guides_messages_are_the_real_ones(project: Path, number: int) -> None:
    assert len(ERRORS) == len(MISTAKES)
    (project / "suites" / "my_model.toml").write_text(EXAMPLE.replace(*MISTAKES[number], 1))
    result = CliRunner().invoke(app, ["list", "cases", "--suite", "my_model"])
    assert (result.exit_code, result.stderr) == (2, ERRORS[number] + "\n")


def test_the_guides_sweep_is_four_cases(project: Path) -> None:
    (project / "suites" / "my_sweep.toml").write_text(SWEEP)
    result = CliRunner().invoke(app, ["list", "cases", "--suite", "my_sweep", "--case", "qk_*"])
    assert result.exit_code == 0, result.output
    assert re.findall(r"\bqk_\d+\b", result.stdout) == ["qk_512", "qk_1024", "qk_2048", "qk_4096"]


def test_the_guides_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert len(PYTHON) == 1
    exec(PYTHON[0], {})
    assert "fused_triton@2" in capsys.readouterr().out
