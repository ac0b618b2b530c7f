"""`fusebench bench`: one file, no project, the engine of `run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app

pytestmark = pytest.mark.usefixtures("forked_workers")

SOURCE = """
import torch
from fusebench import benchmark
import helper_beside_it

@benchmark(inputs=lambda tokens=4: torch.randn(tokens, 32))
def eager(x):
    return x * 2

@benchmark
def doubled(x):
    return x + x

@benchmark
def wrong(x):
    return x * 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "double.py").write_text(SOURCE)
    (tmp_path / "helper_beside_it.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments, "--device", "cpu"])
    return result.exit_code, result.stdout, result.stderr


def test_functions_are_checked_timed_and_written_as_a_run(folder: Path) -> None:
    code, out, _ = bench("double.py", "--size", "tokens=4,8", "--replicates", "2", "--rounds", "2", "--json")
    assert code == 5, "a wrong kernel"
    document = json.loads(out)
    status = {(one["case"], one["kernel"]): one["status"] for one in document["results"]}
    assert status == {
        (f"tokens_{size}", f"double/{name}@1"): "wrong" if name == "wrong" else "measured"
        for size in (4, 8)
        for name in ("eager", "doubled", "wrong")
    }
    timed = [one for one in document["results"] if one["kernel"] == "double/doubled@1"]
    assert all(one["speedup"] > 0 for one in timed)
    (run,) = (folder / "results" / "runs").iterdir()
    assert (run / "report.md").is_file()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("absent.py",), "found absent.py, expected a Python file"),
        (("double.py", "--size", "token=4"), "unknown size 'token'; did you mean 'tokens'?"),
        (("double.py", "--size", "tokens=many"), "--size tokens=many: expected tokens as int"),
        (("helper_beside_it.py",), "no function is marked"),
    ],
)
def test_usage_errors_say_what_was_expected(arguments: tuple[str, ...], expected: str) -> None:
    code, _, err = bench(*arguments)
    assert code == 2
    assert expected in " ".join(err.split())
