"""The project's configuration: found from any folder inside it, refused when it cannot mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.config import find_project, why_no_suites
from fusebench.errors import UsageError
from fusebench.suites import load_suite


def configure(root: Path, text: str) -> Path:
    file = root / "pyproject.toml"
    file.write_text(text)
    return file


def test_the_nearest_configured_pyproject_is_the_project(tmp_path: Path) -> None:
    for folder in ("my_kernels", "more", "cases", "deep/inside"):
        (tmp_path / folder).mkdir(parents=True)
    configure(tmp_path, '[tool.fusebench]\nkernels = ["my_kernels", "more"]\nsuites = ["cases"]\nresults = "out"\n')
    configure(tmp_path / "deep", "[project]\nname = 'another tool'\n")  # without [tool.fusebench] it is passed over
    project = find_project(tmp_path / "deep" / "inside")
    assert project.root == tmp_path
    assert project.kernels == (tmp_path / "my_kernels", tmp_path / "more")
    assert project.suites == (tmp_path / "cases",)
    assert project.results == tmp_path / "out"


def test_default_folders_are_taken_where_they_exist(tmp_path: Path) -> None:
    configure(tmp_path, "[tool.fusebench]\n")
    (tmp_path / "suites").mkdir()
    project = find_project(tmp_path)
    assert (project.kernels, project.suites, project.results) == ((), (tmp_path / "suites",), tmp_path / "results")


def test_without_configuration_the_folder_itself_is_an_empty_project(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    project = find_project(tmp_path)
    assert (project.root, project.kernels, project.suites) == (tmp_path, (), ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tool.fusebench]\nkernel = []\n", r":2: tool.fusebench.kernel: found an unknown key, expected one of .*did you mean 'kernels'"),
        ('[tool.fusebench]\nkernels = "kernels"\n', r":2: tool.fusebench.kernels: found 'kernels' \(string\), expected array"),
        ("[tool.fusebench]\nresults = 3\n", r":2: tool.fusebench.results: found 3 \(integer\), expected string; write it in quotes"),
        ('[tool.fusebench]\nsuites = ["absent"]\n', r"tool.fusebench.suites: found 'absent', expected a folder of"),
        ("[tool.fusebench\n", r":1: not valid TOML"),
        ("[tool]\nfusebench = 3\n", r":2: tool.fusebench: found 3 \(integer\), expected table"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_the_file(tmp_path: Path, text: str, expected: str) -> None:
    file = configure(tmp_path, text)
    with pytest.raises(UsageError, match=expected) as caught:
        find_project(tmp_path)
    assert str(caught.value).startswith(str(file))


def test_a_current_folder_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: a traceback, and a fault of fusebench."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="does not exist any more"):
        find_project()


def test_a_configuration_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    configure(tmp_path, "").write_bytes(b"[tool.fusebench]\nresults = '\xe9'\n")
    with pytest.raises(UsageError, match=":2: found byte 0xe9, expected UTF-8 text; save the file as UTF-8"):
        find_project(tmp_path)


def test_an_editable_install_outside_its_checkout_says_why_there_are_no_suites(tmp_path: Path) -> None:
    project = find_project(tmp_path)
    with pytest.raises(UsageError, match=r"unknown suite 'smoke'; there are none: an editable .*; run in /.*, or install"):
        load_suite("smoke", project, {})  # type: ignore[arg-type]
    configure(tmp_path, "[tool.fusebench]\n")
    (tmp_path / "suites").mkdir()
    assert not why_no_suites(find_project(tmp_path)), "a project's own empty folder is no fault of the installation"
