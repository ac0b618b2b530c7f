"""Kernel files that end their process or print: one document, the right exit code, and every other kernel judged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("forked_workers")
Run = Callable[..., Any]

CASE = ("--suite", "scale", "--case", "even", "--device", "cpu")
QUICK = ("--replicates", "2", "--rounds", "2")
PLANTED = {
    "ends": "import os\nprint('{\"exit_code\": 0}', flush=True)\nos._exit(0)\n",
    "exits": "import atexit, os, sys\natexit.register(os._exit, 0)\nprint('at import')\nsys.exit(0)\n",
    "segfaults": "import ctypes\nctypes.string_at(0)\n",
}


@pytest.fixture(autouse=True)
def no_kernel_file_in_this_process() -> Iterator[None]:
    before = set(sys.modules)
    yield
    assert not [name for name in sys.modules if name.startswith("_fusebench_root") and name not in before]


@pytest.fixture
def planted(toy_project: Path) -> Path:
    """The toy project with a file of each kind in the folder of its op."""
    for name, source in PLANTED.items():
        (toy_project / "kernels" / "scale" / f"{name}.py").write_text(source)
    return toy_project


def test_a_check_names_every_file_and_judges_the_others(fusebench: Run, planted: Path) -> None:
    done = fusebench("check", *CASE, "--json")
    assert done.exit_code == 5
    document = json.loads(done.stdout)
    assert document["exit_code"] == 5
    assert {Path(text.split(": ")[0]).stem for text in document["not_loaded"]} == set(PLANTED)
    assert {result["kernel"]: result["status"] for result in document["results"]} == {
        "scale/split@1": "checked",
        "scale/fast@2": "not_runnable",
    }
    assert "at import" in done.stderr
    assert "ends.py: its import ended the process: it left with exit status 0" in done.stderr


def test_a_run_measures_the_others(fusebench: Run, planted: Path) -> None:
    done = fusebench("run", *CASE, *QUICK, "--json")
    assert done.exit_code == 5, done.stderr
    document = json.loads(done.stdout)
    assert {result["kernel"]: result["status"] for result in document["results"]}["scale/split@1"] == "measured"
    (record,) = (planted / "results" / "runs").glob("*/run.json")
    warnings = json.loads(record.read_text())["warnings"]
    assert sum(text.startswith("not loaded: ") for text in warnings) == len(PLANTED)


def test_a_comparison_goes_on_without_files_of_either_revision(fusebench: Run, planted: Path, tmp_path: Path) -> None:
    base = tmp_path / "base" / "scale"
    base.mkdir(parents=True)
    for file in (planted / "kernels" / "scale").glob("*.py"):
        (base / file.name).write_text(file.read_text() + ("\n# changed\n" if file.stem == "split" else ""))
    done = fusebench("ab", *CASE, "--base-kernels", str(base.parent), "--json", "--no-evidence", "--budget", "1", "--rounds", "2")
    assert done.exit_code == 5, done.stderr
    document = json.loads(done.stdout)
    assert sum("not loaded in the base revision" in text for text in document["warnings"]) == len(PLANTED)


def test_a_list_goes_on(fusebench: Run, planted: Path) -> None:
    done = fusebench("list", "kernels", "--json", "--device", "cpu")
    assert done.exit_code == 0
    assert [kernel["id"] for kernel in json.loads(done.stdout)] == ["scale/fast@2", "scale/split@1"]
    assert all(f"{name}.py: " in done.stderr for name in PLANTED)


def test_a_version_that_is_declared_twice_is_not_timed(fusebench: Run, toy_project: Path) -> None:
    folder = toy_project / "kernels" / "scale"
    plain = (folder / "split.py").read_text().replace('"scale", "split"', '"scale", "plain"')
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(plain)
    done = fusebench("run", *CASE, *QUICK, "--json")
    assert done.exit_code == 5
    assert "scale/plain@1" not in {result["kernel"] for result in json.loads(done.stdout)["results"]}
    assert done.stderr.count("duplicate kernel id scale/plain@1") >= 2


def test_a_package_in_place_of_an_op_is_refused(fusebench: Run, toy_project: Path) -> None:
    package = toy_project / "kernels" / "scale" / "op"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit(0)\n")
    done = fusebench("run", *CASE)
    assert done.exit_code == 2
    assert "hidden by the package op/ beside it" in done.stderr
