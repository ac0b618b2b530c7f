"""The kernels of a commit, beside those of the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fusebench.config import find_project
from fusebench.errors import UnknownNameError, UsageError
from fusebench.runner.revision import kernels_at


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project in a subfolder of a repository; its first commit has no kernels, its second has one, which the checkout changed."""
    project = tmp_path / "repository" / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text("[tool.fusebench]\n")
    git(project.parent, "init", "--quiet", "--initial-branch", "main")
    git(project.parent, "add", ".")
    git(project.parent, "commit", "--quiet", "--message", "no kernels")
    (project / "kernels" / "scale").mkdir(parents=True)
    (project / "kernels" / "scale" / "op.py").write_text("committed\n")
    git(project.parent, "add", ".")
    git(project.parent, "commit", "--quiet", "--message", "kernels")
    (project / "kernels" / "scale" / "op.py").write_text("changed\n")
    return project


def test_the_commits_files_are_there_and_the_checkout_is_not_touched(repository: Path) -> None:
    with kernels_at("HEAD", find_project(repository)) as revision:
        (root,) = revision.roots
        assert (root / "scale" / "op.py").read_text() == "committed\n"
        assert len(revision.commit) == 40
    assert not root.exists()
    assert (repository / "kernels" / "scale" / "op.py").read_text() == "changed\n"


def test_a_commit_without_kernels_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="holds none of the kernel folders kernels"), kernels_at("HEAD~1", find_project(repository)):
        pass


@pytest.mark.parametrize("ref", ["mian", "--help", ""])
def test_an_unknown_commit_is_refused(repository: Path, ref: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown commit"), kernels_at(ref, find_project(repository)):
        pass
