"""The base revision from git: its commit, the unpacked folders, and the errors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fusebench.errors import UnknownNameError, UsageError
from fusebench.runner.evidence.base_checkout import BaseCommit, extract, find_base


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, message: str, **files: str) -> str:
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project in a subfolder of a repository: `main` has gone on since `feature` branched off; `feature` is checked out."""
    top = tmp_path / "repository"
    project = top / "project"
    project.mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    commit(project, "before kernels", README="none yet")
    git(top, "tag", "empty")
    commit(project, "one", kernels__k="one", other="kept out")
    git(top, "checkout", "-q", "-b", "feature")
    commit(project, "two", kernels__k="two")
    git(top, "checkout", "-q", "main")
    commit(project, "three", kernels__k="three")
    git(top, "checkout", "-q", "feature")
    return project


def test_the_base_is_the_merge_base_unless_the_commit_itself_is_asked_for(repository: Path) -> None:
    base = find_base(repository, "main")
    assert (base.commit, base.merge_base) == (git(repository, "rev-parse", "main~1"), True)
    exact = find_base(repository, "main", exact=True)
    assert (exact.commit, exact.merge_base) == (git(repository, "rev-parse", "main"), False)


def test_the_kernels_of_the_commit_are_unpacked_and_nothing_else_and_the_checkout_stays_as_it_is(repository: Path, tmp_path: Path) -> None:
    (repository / "kernels" / "k").write_text("uncommitted")
    before = git(repository, "status", "--porcelain"), sorted((repository.parent / ".git").iterdir())
    found = extract(repository, find_base(repository, "main"), [repository / "kernels"], tmp_path / "into")
    assert [(root / "k").read_text() for root in found.roots] == ["one"]
    assert [file.name for file in (tmp_path / "into").rglob("*") if file.is_file()] == ["k"]
    assert (git(repository, "status", "--porcelain"), sorted((repository.parent / ".git").iterdir())) == before
    assert git(repository, "worktree", "list").count("\n") == 0
    assert (repository / "kernels" / "k").read_text() == "uncommitted"


def test_an_unknown_reference_offers_the_nearest_branch(repository: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"--base: unknown git commit, branch or tag 'featrue'; did you mean 'feature'\?"):
        find_base(repository, "featrue")


def test_a_reference_that_looks_like_an_option_is_only_a_name(repository: Path) -> None:
    with pytest.raises(UnknownNameError):
        find_base(repository, "--output=planted")


def test_outside_of_a_checkout_the_way_without_git_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs the git checkout.*not a git repository.*--base-kernels DIR"):
        find_base(tmp_path, "main")


def test_without_git_the_same(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="--base-kernels DIR"):
        find_base(repository, "main")


def test_histories_without_a_common_commit_have_no_merge_base(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "alone")
    commit(repository, "alone", kernels__k="alone")
    with pytest.raises(UsageError, match=r"no commit in common.*--exact"):
        find_base(repository, "main")
    assert find_base(repository, "main", exact=True).commit == git(repository, "rev-parse", "main")


def test_a_commit_without_a_kernels_folder_is_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the merge base of HEAD and empty\) has no folder project/kernels; choose a commit that has"):
        extract(repository, find_base(repository, "empty"), [repository / "kernels"], tmp_path / "into")


def test_a_folder_that_is_new_and_one_outside_of_the_repository_are_noted(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, new = tmp_path / "outside", repository / "more"
    outside.mkdir()
    new.mkdir()
    found = extract(repository, find_base(repository, "main"), [repository / "kernels", new, outside], tmp_path / "into")
    assert found.roots == (tmp_path / "into" / "project" / "kernels", outside)
    assert [note for note in found.notes if "has no folder project/more" in note]
    assert [note for note in found.notes if "lies outside the repository: both revisions use it" in note]
    monkeypatch.setattr("fusebench.runner.evidence.base_checkout.SHIPPED", tmp_path)  # as of an installed wheel, which nobody changes
    found = extract(repository, find_base(repository, "main"), [repository / "kernels", outside], tmp_path / "again")
    assert not found.notes
    with pytest.raises(UsageError, match="no kernels folder lies in the repository"):
        extract(repository, BaseCommit(asked="main", commit="0" * 40, merge_base=False), [outside], tmp_path / "none")
