"""A package that fusebench declares and that is not installed: what a command says of it, and what is not taken for one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from fusebench.cli.shared.exit_status import exit_code_of
from fusebench.faults import EXTRAS, PACKAGES, missing_package, what_ended
from fusebench.schema import ExitCode
from fusebench.stats.paired import InvalidSamplesError

Run = Callable[..., Any]
REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "harness"

WITHOUT_PLATFORMDIRS = """
import importlib.metadata, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "platformdirs":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

known = importlib.metadata.distribution

def distribution(name):
    if name in ("fusebench", "platformdirs"):
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

sys.meta_path.insert(0, Absent())
importlib.metadata.distribution = distribution
from fusebench.cli.main import main
main()
"""
"""As where the sources are run through PYTHONPATH: nothing tells what fusebench declares, and platformdirs is not there."""


def test_a_command_that_lacks_a_package_says_which_and_what_to_do(toy_project: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FUSEBENCH_LOCK_DIR"} | {"PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", WITHOUT_PLATFORMDIRS, "doctor", "--device", "cpu"]
    done = subprocess.run(command, cwd=toy_project, env=environment, capture_output=True, text=True, timeout=120, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert last.startswith("error: the package platformdirs, which fusebench needs, is not installed")
    assert "pip install -e" in last
    assert "make run" in last
    assert "Traceback" not in done.stderr
    assert "fault of fusebench" not in done.stderr


def test_the_package_is_named_as_pip_knows_it() -> None:
    missing = missing_package(ModuleNotFoundError("No module named 'pynvml'", name="pynvml"))
    assert str(missing).startswith("the package nvidia-ml-py, which fusebench needs")


def test_an_installed_wheel_needs_no_checkout_for_its_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: whoever had installed the wheel was sent to the folder of a pyproject.toml that they do not have."""
    monkeypatch.setattr("fusebench.faults.SHIPPED", tmp_path)
    told = str(missing_package(ModuleNotFoundError("No module named 'duckdb'", name="duckdb")))
    assert told.endswith("pip install 'fusebench[store]'`")
    assert "pyproject.toml" not in told


def test_a_measurement_that_it_ended_is_no_fault_either() -> None:
    ended = what_ended(ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow"))
    assert ended is not None
    assert (ended[0], "pyarrow, which fusebench needs" in ended[1]) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("a bug", name="fusebench.device.lokc"),
        ModuleNotFoundError("a bug", name="platformdris"),
        ModuleNotFoundError("a bug", name="scipy.specail"),
        ModuleNotFoundError("a bug"),
        ImportError("a bug", name="platformdirs"),
    ],
    ids=["of fusebench", "misspelt", "within a package", "without a name", "a name that a module lacks"],
)
def test_any_other_import_that_fails_stays_a_fault(fusebench: Run, monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("fusebench.cli.shared.selection.load_project", fail)
    result = fusebench("list", "ops")
    assert result.exit_code == ExitCode.FAULT
    assert "this is a fault of fusebench" in result.stderr
    ended = what_ended(error)
    assert ended is not None
    assert ended[0] is ExitCode.FAULT


def imports(files: Iterable[Path]) -> set[str]:
    """Top-level modules that the files import, wherever in them, but for Python's own and their own package."""
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"fusebench"}


def test_the_packages_are_those_that_fusebench_imports_and_declares(tmp_path: Path) -> None:
    files = list((SOURCES / "fusebench").rglob("*.py"))
    assert imports(files) == set(PACKAGES)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for package in PACKAGES.values():
        declared = [*project["dependencies"], *extras[EXTRAS.get(package, "gpu")]]
        assert package in {Requirement(line).name for line in declared}, "what the remedy installs"
    needed = {Requirement(line).name for line in project["dependencies"]}
    assert needed <= set(PACKAGES.values()), "a dependency that no module imports"
    planted = tmp_path / "planted.py"
    planted.write_text("import os\ndef later():\n    from undeclared.part import thing\n")
    assert imports([planted]) == {"undeclared"}, "the detector on a planted defect"


def test_samples_that_cannot_be_times_are_the_timers_fault(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvalidSamplesError("sample 3 of 8 is 0.0; expected a positive finite duration")
    assert exit_code_of(error) == ExitCode.DEVICE_UNFIT
    assert capsys.readouterr().err == f"error: {error}\n"
    assert what_ended(error) == (ExitCode.DEVICE_UNFIT, str(error))
