"""The base revision of a comparison: the kernels folders of a git commit, unpacked from the repository into a folder of their own.

Git is only read: no worktree, no index and no file of the checkout is touched, so a comparison runs beside an editor and on a dirty tree.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...config import SHIPPED, Project
from ...errors import UnknownNameError, UsageError
from ...registry.collection import adds_to_ops
from ...store.comparison_record import BaseRevision

GIT_TIMEOUT_S = 120.0
"""An archive of a kernels folder takes a fraction of a second; a repository that fetches its objects when asked takes longer."""


class BaseCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of the base revision."""

    asked: str
    """As the user named it."""
    commit: str
    merge_base: bool
    """Whether it is the merge base of HEAD and the requested commit, and not the latter itself."""


class BaseFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The base's kernels folders, in the order of head's."""

    roots: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    """Remarks on them, for readers."""


class BaseChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a base revision: a commit by its name, or a folder of kernels."""

    ref: str | None = None
    """Commit, branch or tag."""
    exact: bool = False
    """Whether `ref` itself is meant, and not its merge base with HEAD."""
    folder: Path | None = None

    def require(self, project: Project) -> BaseCommit | None:
        """The commit; None for a folder of kernels. This is quick, so that a wrong name is refused before anything is loaded.

        Raises:
            UsageError, UnknownNameError: as `resolve`.
        """
        if self.folder is None:
            return find_base(project.root, self.ref or "", exact=self.exact)
        if not self.folder.is_dir():
            raise UsageError(f"--base-kernels {self.folder}: no such folder; expected one like `kernels/`, with a folder per op")
        return None

    def resolve(self, project: Project, roots: Sequence[Path], scratch: Path) -> tuple[BaseRevision, tuple[Path, ...]]:
        """The base revision and its kernels folders; a commit's are unpacked below `scratch`.

        Raises:
            UsageError: the folder does not exist, there is no repository, or the commit has no kernels.
            UnknownNameError: the repository has no such commit.
        """
        commit = self.require(project)
        if self.folder is not None:
            folder = self.folder.resolve()
            # Kernels that it adds to ops of another root need that root; a folder that defines all of its ops stands alone.
            shared = [root for root in roots if not root.is_relative_to(project.root)] if adds_to_ops(folder) else []
            return BaseRevision(asked=str(self.folder)), (folder, *shared)
        assert commit is not None
        found = extract(project.root, commit, roots, scratch)
        asked = self.ref or ""
        return BaseRevision(asked=asked, commit=commit.commit, merge_base=commit.merge_base, notes=found.notes), found.roots


def name_of(base: BaseRevision, other: str = "") -> str:
    """The base revision in words: its commit, or the requested name after `other`."""
    return f"commit {base.commit[:12]}" if base.commit else f"{other}{base.asked}"


def find_base(project: Path, ref: str, *, exact: bool = False, where: str = "--base") -> BaseCommit:
    """The merge base of HEAD and `ref`, where this branch started; with `exact`, the commit `ref` itself.

    Args:
        where: the option that names the commit, for messages.

    Raises:
        UsageError: no git, no repository around `project`, or histories without a common commit.
        UnknownNameError: nothing in it is called `ref`; the nearest branch or tag is offered.
    """
    top_level(project)
    found = try_git(project, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if found is None:
        names = try_git(project, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes") or b""
        raise UnknownNameError("git commit, branch or tag", ref, names.decode().split(), where=where)
    commit = found.decode().strip()
    if exact:
        return BaseCommit(asked=ref, commit=commit, merge_base=False)
    common = try_git(project, "merge-base", "HEAD", commit)
    if common is None:
        raise UsageError(
            f"--base {ref}: HEAD and {commit[:12]} have no commit in common, so there is no merge base; fetch more history "
            "(a shallow clone lacks it), or compare with that commit itself by --exact"
        )
    return BaseCommit(asked=ref, commit=common.decode().strip(), merge_base=True)


def extract(project: Path, base: BaseCommit, roots: Sequence[Path], into: Path) -> BaseFolders:
    """Write the folders that `roots` were in the base commit below `into`.

    A root outside the repository is the same in both revisions and is used as it is.

    Raises:
        UsageError: the commit has none of the folders, or no root lies in the repository.
    """
    top = top_level(project)
    found: list[Path] = []
    notes: list[str] = []
    inside = [root for root in roots if root.resolve().is_relative_to(top)]
    if not inside:
        shown = ", ".join(str(root) for root in roots) or "none"
        raise UsageError(f"--base: no kernels folder lies in the repository {top} (kernels folders: {shown}); name one with --kernels DIR")
    for root in roots:
        if root not in inside:
            found.append(root)
            if not root.is_relative_to(SHIPPED):  # nobody changes those of an installed wheel
                notes.append(f"kernels folder {root} lies outside the repository: both revisions use it as it is")
            continue
        path = root.resolve().relative_to(top).as_posix()
        kind = try_git(top, "cat-file", "-t", f"{base.commit}:{path}" if path != "." else base.commit)
        if kind is None or kind.strip() not in (b"tree", b"commit"):
            notes.append(f"commit {base.commit[:12]} has no folder {path}: its kernels are new in this checkout")
            continue
        _unpack(git(top, "archive", "--format=tar", base.commit, "--", path), into)
        found.append(into / path)
    if not any(root.is_relative_to(into) for root in found):
        where = f"the merge base of HEAD and {base.asked}" if base.merge_base else base.asked
        folders = ", ".join(root.resolve().relative_to(top).as_posix() for root in inside)
        raise UsageError(f"--base {base.asked}: {base.commit[:12]} ({where}) has no folder {folders}; choose a commit that has kernels")
    return BaseFolders(roots=tuple(found), notes=tuple(notes))


def why_absent(project: Path, commit: str) -> str:
    """Why the repository around `project` cannot give the sources of `commit`; empty if it can."""
    try:
        top_level(project)
    except UsageError:
        return f"{project} lies in no git checkout"
    if try_git(project, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}") is None:
        return f"this repository does not have commit {commit[:12]}: fetch it (a shallow clone lacks history)"
    return ""


def top_level(project: Path) -> Path:
    """The root of the checkout around `project`, for a comparison with `--base`.

    Raises:
        UsageError: git is not installed, or there is no checkout.
    """
    try:
        return checkout_around(project)
    except UsageError as error:
        raise UsageError(
            f"--base needs the git checkout that {project} lies in: {error}; run inside one, or give the base's kernels folder "
            "with --base-kernels DIR"
        ) from error


def checkout_around(folder: Path) -> Path:
    """The root of the checkout around `folder`.

    Raises:
        UsageError: git is not installed, or there is no checkout.
    """
    return Path(git(folder, "rev-parse", "--show-toplevel").decode().strip()).resolve()


def _unpack(archive: bytes, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(into, filter="data")


def try_git(folder: Path, *arguments: str) -> bytes | None:
    """The command's output; None if it fails."""
    try:
        return git(folder, *arguments)
    except UsageError:
        return None


def git(folder: Path, *arguments: str, given: bytes | None = None) -> bytes:
    """The output of `git ARGUMENTS` in `folder`, which changes nothing there; `given` is its stdin.

    Raises:
        UsageError: git is not installed, or it failed; the message is its first line.
    """
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            input=given,
            capture_output=True,
            check=True,
            timeout=GIT_TIMEOUT_S,
            # Nothing is written, not even a refreshed index, and no password is asked for.
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.CalledProcessError as error:
        raise UsageError((error.stderr or b"").decode(errors="replace").strip().partition("\n")[0] or str(error)) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(str(error)) from error
    return done.stdout
