"""The commits of a search: from good to bad along the first parents, grouped by the content of the kernels folders.

Git is only read, as by `runner.evidence.base_checkout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..runner.evidence.base_checkout import checkout_around, find_base, git, try_git
from ..store.bisection_record import Commit

_FIELDS = "%H%x00%P%x00%an%x00%aI%x00%s"


class Group(msgspec.Struct, frozen=True):
    """Consecutive commits with the same kernels folders, oldest first."""

    commits: tuple[Commit, ...]
    folders: tuple[str, ...]
    """Git's digest of each kernels folder; empty for one that the commits lack."""

    @property
    def first(self) -> Commit:
        """The one commit that changed the kernels folders."""
        return self.commits[0]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The range of a search."""

    good: Commit
    bad: Commit
    groups: tuple[Group, ...]
    """Group 0 ends with, or holds, good; the last one holds bad."""
    notes: tuple[str, ...] = ()

    @property
    def commits(self) -> int:
        """Commits that can be the first slow one."""
        return sum(len(group.commits) for group in self.groups) - 1


def history(project: Path, good: str, bad: str, roots: Sequence[Path]) -> History:
    """The commits after `good` up to `bad`, along first parents: a merge stands for all that it merged.

    A `good` that is no ancestor of `bad` is replaced by their merge base, as `git bisect` does.

    Args:
        roots: the kernels folders of the checkout.

    Raises:
        UsageError: no repository, no common history, nothing between the two, or an end without a kernels folder.
        UnknownNameError: a name that git does not know.
    """
    try:
        top = checkout_around(project)
    except UsageError as error:
        raise UsageError(f"no git checkout around {project}: {error}; a search needs its history, so run inside one") from error
    inside = [root.resolve().relative_to(top).as_posix() for root in roots if root.resolve().is_relative_to(top)]
    if not inside:
        raise UsageError(f"no kernels folder lies in the repository {top}, so no commit of it changes one; name one with --kernels DIR")
    first, last = (find_base(project, ref, exact=True, where=option).commit for ref, option in ((good, "--good"), (bad, "--bad")))
    notes = []
    common = try_git(top, "merge-base", first, last)
    base = common.decode().strip() if common is not None else ""
    if not base:
        raise UsageError(
            f"--good {good} and --bad {bad} have no commit in common; fetch more history (a shallow clone lacks it: fetch-depth: 0)"
        )
    if base == last:
        same = "are the same commit" if first == last else f"are swapped: {bad} is an ancestor of {good}"
        raise UsageError(f"--good {good} and --bad {bad} {same}; name an older commit that was fast, and a newer one that is slow")
    if base != first:
        notes.append(f"{good} is no ancestor of {bad}: the search starts at their merge base {base[:12]} instead")
        first = base
    found = [*_log(top, "-1", first), *_log(top, "--first-parent", "--reverse", f"{first}..{last}")]
    folders = _folders(top, [one.commit for one in found], inside)
    for one, has, option in ((found[0], folders[0], f"--good {good}"), (found[-1], folders[-1], f"--bad {bad}")):
        if not any(has):
            raise UsageError(_moved(option, one, inside, found, folders))
    pairs = groupby(zip(found, folders, strict=True), key=lambda pair: pair[1])
    groups = tuple(Group(tuple(commit for commit, _ in members), key) for key, members in pairs)
    if len(groups) == 1:
        raise UsageError(
            f"every file of {', '.join(inside)} is the same in {good} and {bad}, so no commit between them changed a kernel; "
            "compare the toolchain, the driver and the machine (`fusebench history`)"
        )
    return History(good=found[0], bad=found[-1], groups=groups, notes=tuple(notes))


def _log(top: Path, *range_: str) -> list[Commit]:
    found = git(top, "-c", "log.showSignature=false", "log", f"--format={_FIELDS}", *range_).decode(errors="replace")
    rows = [line.split("\0") for line in found.split("\n") if line]
    return [
        Commit(commit=commit, parents=tuple(parents.split()), author=author, date=date, subject=subject)
        for commit, parents, author, date, subject in rows
    ]


def _folders(top: Path, commits: Sequence[str], paths: Sequence[str]) -> list[tuple[str, ...]]:
    """For each commit, git's digest of each path; empty for a path that it lacks, or that is no folder."""
    wanted = "".join(f"{commit}:{'' if path == '.' else path}\n" for commit in commits for path in paths)
    lines = git(top, "cat-file", "--batch-check=%(objecttype) %(objectname)", given=wanted.encode()).decode(errors="replace").splitlines()
    found = [line.split()[1] if line.startswith(("tree ", "commit ")) else "" for line in lines]
    return [tuple(found[place : place + len(paths)]) for place in range(0, len(found), len(paths))]


def _moved(option: str, end: Commit, inside: Sequence[str], found: Sequence[Commit], folders: Sequence[tuple[str, ...]]) -> str:
    there = [commit.commit[:12] for commit, has in zip(found, folders, strict=True) if any(has)]
    ends = f"the commits {there[0]} to {there[-1]} have one: choose both ends among them" if there else "no commit between the ends has one"
    return f"{option}: commit {end.commit[:12]} has no folder {', '.join(inside)}: was it moved or renamed?  {ends}"
