"""The kernels of a git commit, written to a folder of their own, so that they can be loaded beside those of this checkout."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..config import Project
from ..errors import UnknownNameError, UsageError


class Revision(msgspec.Struct, frozen=True):
    """A commit and where its kernel folders lie for now."""

    ref: str
    commit: str
    roots: tuple[Path, ...]


@contextmanager
def kernels_at(ref: str, project: Project) -> Iterator[Revision]:
    """The project's kernel folders as they are in commit `ref`, until the block ends.  The checkout is not touched.

    Raises:
        UnknownNameError: git knows no such commit; the nearest branch or tag is offered.
        UsageError: there is no git, the project is not in a repository, or the commit has none of the kernel folders.
    """
    commit = _git(project.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if commit is None:
        if _git(project.root, "rev-parse", "--git-dir") is None:
            raise UsageError(f"{project.root} is not in a git repository, so there is no commit {ref!r} to compare with")
        known = _git(project.root, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes") or b""
        raise UnknownNameError("commit", ref, [*known.decode().split(), "HEAD"], "--base")
    name = commit.decode().strip()
    folders = [folder.relative_to(project.root).as_posix() for folder in project.kernels if folder.is_relative_to(project.root)]
    there = [folder for folder in folders if _git(project.root, "cat-file", "-e", f"{name}:./{folder}") is not None]
    if not there:
        raise UsageError(f"commit {name[:12]} ({ref}) holds none of the kernel folders {', '.join(folders) or '(the project has none)'}")
    archive = _git(project.root, "archive", "--format=tar", name, "--", *there)
    if archive is None:
        raise UsageError(f"git archive {name[:12]} failed in {project.root}; see whether `git fsck` finds the repository sound")
    with tempfile.TemporaryDirectory(prefix="fusebench_base_") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        yield Revision(ref, name, tuple(Path(folder) / one for one in there))


def _git(root: Path, *arguments: str) -> bytes | None:
    """What git says, or None where it refuses."""
    command: Sequence[str | Path] = ["git", "-C", root, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed, and comparing with a commit needs it") from None
    return done.stdout if done.returncode == 0 else None
