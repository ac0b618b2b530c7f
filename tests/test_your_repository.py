"""docs/your_repository.md tells the truth: in an empty folder, with what the wheel brings, its files and commands work in their order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusebench import config
from fusebench.cli.main import app
from fusebench.config import find_project
from fusebench.errors import UsageError
from fusebench.suites import list_suites, load_suite

REPOSITORY = Path(__file__).parents[1]
GUIDE = (REPOSITORY / "docs" / "your_repository.md").read_text()
(INSTALL,) = re.findall(r"^```\n(pip wheel .*?\n)```", GUIDE, re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# ([\w./]+\.(?:py|toml))$")
pytestmark = pytest.mark.usefixtures("forked_workers")


def steps(text: str) -> Iterator[tuple[str, str]]:
    """("file", text with its path in the first line) and ("command", arguments), in the guide's order."""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "console":
            yield from (("command", command) for command in re.findall(r"^\$ fusebench (.*)$", block, re.MULTILINE))
        elif FILE.match(block.partition("\n")[0]):
            yield "file", block


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an installed wheel brings, as links to the checkout's folders."""
    folder = tmp_path / "site" / "_shipped"
    folder.mkdir(parents=True)
    for name in ("kernels", "suites"):
        (folder / name).symlink_to(REPOSITORY / name)
    monkeypatch.setattr(config, "SHIPPED", folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("shipped")
def test_the_guides_files_and_commands_work_in_their_order(empty: Path) -> None:
    done = []
    for kind, text in steps(GUIDE):
        if kind == "file":
            path = empty / FILE.match(text.partition("\n")[0])[1]  # type: ignore[index]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        else:
            result = CliRunner().invoke(app, shlex.split(text))
            assert result.exit_code == 0, f"fusebench {text}\n{result.output}"
            assert result.stdout
            done.append(result.output)
    assert len(done) >= 5
    assert f"results of runs go to {empty / 'results'}" in done[0]
    assert f"run: {empty / 'results' / 'runs'}" in done[1]
    assert "softcap/in_place_steps@1" in done[2]
    assert "qknorm_rope/mine@1" in done[3]


def test_kernels_that_no_project_names_are_told(empty: Path, shipped: Path) -> None:
    """A first kernel that is written before a pyproject.toml would else be an unknown name without a hint."""
    (empty / "kernels" / "qknorm_rope").mkdir(parents=True)
    (empty / "kernels" / "qknorm_rope" / "mine.py").write_text("import torch\n")
    assert CliRunner().invoke(app, ["list", "ops"]).stderr == ""
    (empty / "kernels" / "qknorm_rope" / "mine.py").write_text("from fusebench import kernel\n")
    assert f"note: {empty / 'kernels'} is not used: no pyproject.toml names it" in CliRunner().invoke(app, ["list", "ops"]).stderr
    assert CliRunner().invoke(app, ["list", "ops", "--kernels", "kernels"]).stderr == ""
    (empty / "pyproject.toml").write_text("[tool.fusebench]\n")
    assert CliRunner().invoke(app, ["list", "ops"]).stderr == ""


@pytest.mark.usefixtures("empty")
def test_an_op_that_a_project_copies_is_refused_with_both_files(empty: Path, shipped: Path) -> None:
    (empty / "pyproject.toml").write_text("[tool.fusebench]\n")
    shutil.copytree(REPOSITORY / "kernels" / "qknorm_rope", empty / "kernels" / "qknorm_rope")
    result = CliRunner().invoke(app, ["list", "ops", "--op", "qknorm_rope"])
    assert result.exit_code == 0
    message = " ".join(result.stderr.split())
    assert "op 'qknorm_rope' is already defined by" in message
    assert str(empty / "kernels" / "qknorm_rope" / "op.py") in message
    assert str((shipped / "kernels").resolve() / "qknorm_rope" / "op.py") in message
    (empty / "pyproject.toml").write_text("[tool.fusebench]\nshipped = false\n")
    assert CliRunner().invoke(app, ["list", "ops", "--op", "qknorm_rope"]).stderr == ""


def test_a_project_lies_on_what_comes_with_fusebench(empty: Path, shipped: Path) -> None:
    (empty / "kernels").mkdir()
    (empty / "pyproject.toml").write_text("[tool.fusebench]\n")
    project = find_project(empty)
    assert project.kernels == (empty / "kernels", shipped / "kernels")
    assert project.suites == (shipped / "suites",)
    assert project.kernels_with([empty / "more"]) == (empty / "more", shipped / "kernels")
    assert project.is_shipped(shipped / "suites" / "smoke.toml")


def test_a_projects_suite_hides_one_of_the_same_name_that_comes_with_fusebench(empty: Path, shipped: Path) -> None:
    (empty / "suites").mkdir()
    (empty / "pyproject.toml").write_text("[tool.fusebench]\n")
    text = (shipped / "suites" / "smoke.toml").read_text()
    (empty / "suites" / "smoke.toml").write_text(text.replace("a few tiny cases", "my tiny cases"))
    project = find_project(empty)
    (own,) = [one for one in list_suites(project) if one.name == "smoke"]
    assert (own.problem, own.path) == ("", "suites/smoke.toml")
    assert "qknorm_rope" in {one.name for one in list_suites(project)}
    (empty / "more").mkdir()
    shutil.copy(empty / "suites" / "smoke.toml", empty / "more" / "smoke.toml")
    (empty / "pyproject.toml").write_text('[tool.fusebench]\nsuites = ["suites", "more"]\n')
    with pytest.raises(UsageError, match="suite 'smoke' is in several suites folders"):
        load_suite("smoke", find_project(empty), {})


def test_the_checkout_uses_its_own_folders(shipped: Path) -> None:
    assert shipped.is_dir()
    project = find_project(REPOSITORY)
    assert (project.kernels, project.suites, project.shipped) == ((REPOSITORY / "kernels",), (REPOSITORY / "suites",), None)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the guide's first two commands, in a copy of the checkout, since building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    for name in ("harness", "kernels", "suites"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(REPOSITORY / name, copy / name)
    build, install = (shlex.split(line) for line in INSTALL.splitlines())
    assert [*build[:2], *install[:2]] == ["pip", "wheel", "pip", "install"]
    offline = ["--quiet", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", *build, *offline], cwd=copy, check=True, capture_output=True)
    (found,) = copy.glob(install[2])
    return found


def test_the_wheel_brings_every_kernel_and_suite_of_the_checkout(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("kernels", "suites"):
        files = [file for file in (REPOSITORY / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        missing = [file for file in files if f"fusebench/_shipped/{file.relative_to(REPOSITORY).as_posix()}" not in names]
        assert files
        assert not missing
    assert not [name for name in names if name.endswith(".pyc") or name.startswith(("kernels/", "suites/"))]


def test_the_guides_name_extras_that_exist() -> None:
    texts = [file.read_text() for file in (REPOSITORY / "docs").glob("*.md")]
    named = {extra for text in texts for found in re.findall(r"fusebench\[([\w,]+)\]", text) for extra in found.split(",")}
    assert named
    assert named <= tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()


def test_the_installed_wheel_lists_its_suites_in_an_empty_folder(wheel: Path, tmp_path: Path, empty: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); from fusebench.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "list", "suites"], cwd=empty, capture_output=True, text=True, check=True)
    assert "models/flux1_dev" in done.stdout
    assert done.stderr == ""


def test_tune_holds_a_new_table_against_the_one_that_came_with_fusebench(empty: Path, shipped: Path) -> None:
    """Dispatch takes that one until the project has its own; against the default order of kernels a new table looked like a gain."""
    (shipped / "kernels").unlink()
    shutil.copytree(REPOSITORY / "kernels", shipped / "kernels")  # a link would lead to the checkout, whose folders are a project's own
    (empty / "kernels").mkdir()
    (empty / "pyproject.toml").write_text('[tool.fusebench]\nkernels = ["kernels"]\n')
    baseline = REPOSITORY / "results" / "baselines" / "nvidia_h200"
    outcome = CliRunner().invoke(app, ["tune", "--from", str(baseline), "--op", "qknorm_rope", "--dry-run", "--json"])
    assert outcome.exit_code == 0, outcome.output
    (table,) = json.loads(outcome.stdout)["tables"]
    assert table["file"] == str(empty / "kernels" / "qknorm_rope" / "dispatch" / "nvidia_h200.triton-3.6.json")
    assert table["now"]["within_1_05"] == 1
