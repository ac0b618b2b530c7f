"""An installed distribution brings ops, kernels and suites by its entry points: listed with their origin, a clash refused by name."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app
from fusebench.config import find_project
from fusebench.errors import SuiteError
from fusebench.registry.loading.installed import KERNELS_GROUP, SUITES_GROUP
from fusebench.suites import list_suites, load_suite

TOY = Path(__file__).parent / "toy_project"
GUIDE = (Path(__file__).parents[1] / "docs" / "your_repository.md").read_text()


def install(site: Path, name: str, points: dict[str, str]) -> None:
    """Write the files by which an installer registers the distribution `name` 1.2; `points` are its packages by group."""
    info = site / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {package}\n" for group, package in points.items()))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, of which `acme` brings the toy project's ops and suites; the current folder is empty."""
    site = tmp_path / "site"
    shutil.copytree(TOY / "kernels", site / "acme" / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "acme" / "suites" / "models").mkdir(parents=True)
    text = (TOY / "suites" / "scale.toml").read_text()
    (site / "acme" / "suites" / "models" / "toy.toml").write_text(text.replace('name = "scale"', 'name = "models/toy"', 1))
    install(site, "acme", {KERNELS_GROUP: "acme.kernels", SUITES_GROUP: "acme.suites"})
    monkeypatch.syspath_prepend(site)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return site


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["list", *arguments, "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def test_an_installed_packages_suites_and_ops_work_in_an_empty_folder(site: Path) -> None:
    (suite,) = [row for row in listed("suites") if row["suite"] == "models/toy"]
    assert (suite["origin"], suite["path"]) == ("acme 1.2", str(site / "acme" / "suites" / "models" / "toy.toml"))
    assert {row["op"] for row in listed("cases", "--suite", "models/toy")} == {"scale"}


def test_a_clash_with_the_project_or_another_package_is_refused_by_name(site: Path) -> None:
    """Neither of the two wins silently."""
    own = Path("suites")
    shutil.copytree(site / "acme" / "suites", own)
    Path("pyproject.toml").write_text("[tool.fusebench]\n")
    with pytest.raises(SuiteError, match=r"suite 'models/toy' is in several suites folders: .*empty/suites/.*, .*site/acme/suites/"):
        load_suite("models/toy", find_project(), {})
    assert [(one.origin, bool(one.problem)) for one in list_suites(find_project())] == [("project", True), ("acme 1.2", True)]
    shutil.rmtree(own)
    assert not [one.problem for one in list_suites(find_project()) if one.problem]
    (site / "twin").mkdir()
    shutil.copytree(site / "acme" / "suites", site / "twin" / "suites")
    install(site, "twin", {SUITES_GROUP: "twin.suites"})
    from fusebench.suites import files

    files._installed.cache_clear()  # installed while this process runs
    result = CliRunner().invoke(app, ["list", "suites"])
    assert result.exit_code == 2
    assert result.stderr.count("suite 'models/toy' is in several suites folders") == 2


def test_a_project_that_is_also_installed_has_each_suite_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "acme" / "pyproject.toml").write_text("[tool.fusebench]\n")
    monkeypatch.chdir(site / "acme")
    (found,) = list_suites(find_project())
    assert (found.name, found.origin, found.problem) == ("models/toy", "project", "")


def test_an_entry_point_that_leads_to_no_folder_is_told_and_the_rest_works(site: Path) -> None:
    install(site, "broken", {SUITES_GROUP: "broken.suites"})
    result = CliRunner().invoke(app, ["list", "suites"])
    assert (result.exit_code, "models/toy" in result.stdout) == (0, True)
    message = " ".join(result.stderr.split())
    assert f"entry point 'broken' of group '{SUITES_GROUP}' cannot be loaded: ModuleNotFoundError: No module named 'broken'" in message


def test_the_guide_names_the_groups_as_the_code_does(site: Path) -> None:
    """The guide's snippet of a pyproject.toml, registered as an installer does it, brings the ops and suites."""
    (block,) = [one for one in GUIDE.split("```toml\n")[1:] if "entry-points" in one]
    groups = tomllib.loads(block.partition("```")[0])["project"]["entry-points"]
    assert set(groups) == {KERNELS_GROUP, SUITES_GROUP}
    shutil.rmtree(site / "acme-1.2.dist-info")
    (site / "acme").rename(site / "my_package")
    install(site, "my_package", {group: value for group, points in groups.items() for value in points.values()})
    assert [row["origin"] for row in listed("suites") if row["suite"] == "models/toy"] == ["my_package 1.2"]
    assert "scale" in {row["op"] for row in listed("ops")}
