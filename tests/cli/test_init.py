"""`fusebench init` makes a project that works at once, and overwrites nothing."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app
from fusebench.config import find_project

pytestmark = pytest.mark.usefixtures("forked_workers")


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_a_new_project_passes_check_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke("init", "mine")
    assert (code, err) == (0, "")
    assert "next: cd mine && fusebench check --suite silu_mul" in out
    monkeypatch.chdir(tmp_path / "mine")
    assert find_project().kernels[0] == tmp_path / "mine" / "kernels"
    code, out, err = invoke("check", "--suite", "silu_mul", "--device", "cpu")
    assert code == 0, err
    for kernel in ("split_torch@1", "fused_triton@1"):
        assert kernel in out
    code, out, err = invoke("suite", "random", "--op", "silu_mul", "--count", "1")
    assert (code, "[[case]]" in out) == (0, True), err
    assert len((tmp_path / "mine" / "kernels" / "silu_mul" / "op.py").read_text().splitlines()) < 50


def test_a_place_that_takes_no_folder_is_refused(tmp_path: Path) -> None:
    """Planted defect: a read-only folder, or a file in place of one, was a fault of fusebench with a traceback."""
    (tmp_path / "file").touch()
    code, _, err = invoke("init", str(tmp_path / "file"))
    assert (code, f"{tmp_path / 'file'}" in err, "cannot be written" in err) == (2, True, True), err


@pytest.mark.parametrize("arguments", [("init",), ("suite", "random", "--count", "1", "--out")])
def test_a_path_that_is_too_long_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, err = invoke(*arguments, str(tmp_path / ("n" * 300)))
    assert (code, "too long" in err, "Traceback" in err) == (2, True, False), err


def test_the_script_for_ci_is_a_script(tmp_path: Path) -> None:
    assert invoke("init", str(tmp_path))[0] == 0
    script = tmp_path / "ci" / "fusebench.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_a_pyproject_that_is_there_gets_the_section_and_keeps_the_rest(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"')
    assert invoke("init", str(tmp_path))[0] == 0
    document = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert document["project"] == {"name": "mine"}
    assert document["tool"]["fusebench"]["kernels"] == ["kernels"]


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("pyproject.toml", "[tool.fusebench]\n", "[tool.fusebench] of pyproject.toml"),
        ("suites/silu_mul.toml", "mine", "suites/silu_mul.toml"),
        ("ci/fusebench.sh", "mine", "ci/fusebench.sh"),
    ],
)
def test_nothing_is_overwritten_and_nothing_is_half_made(tmp_path: Path, path: str, text: str, named: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    code, _, err = invoke("init", str(tmp_path))
    assert code == 2
    assert f"{named} already" in err
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [file]
    assert file.read_text() == text


def test_a_pyproject_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[[[")
    code, _, err = invoke("init", str(tmp_path))
    assert code == 2
    assert "not valid TOML" in err
