"""The sources that a run's kernels had, as digests for a dispatch table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from ..config import Project
from ..errors import UsageError
from ..registry.dispatching.other_code import code_today
from ..schema import Run
from .evidence.base_checkout import BaseCommit, extract, why_absent


class MeasuredCode:
    """The digests of the sources that runs measured: from git, since a record holds the commit and no source. Git is only read."""

    def __init__(self, project: Project, measured_here: Iterable[str] = ()) -> None:
        """
        Args:
            measured_here: ids of the runs that this process has just measured, with the sources of today.
        """
        self._project, self._here = project, frozenset(measured_here)
        self._folders: dict[str, tuple[tuple[Path, ...], str]] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="fusebench-tune-")

    def __enter__(self) -> MeasuredCode:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def of(self, run: Run, op: str, kernels: Iterable[str], roots: tuple[Path, ...]) -> tuple[dict[str, str], str]:
        """The digest of each kernel (`name@version`) whose source is known, and why none is, or nothing.

        Args:
            roots: today's folders of kernels.
        """
        environment = run.environment
        if run.id in self._here:
            return code_today(op, kernels, roots), ""
        if environment.git_dirty:
            return {}, "it was measured with uncommitted changes"
        if not environment.git_commit:
            return {}, "its record names no commit"
        if environment.git_commit not in self._folders:
            self._folders[environment.git_commit] = self._extracted(environment.git_commit, roots)
        folders, why = self._folders[environment.git_commit]
        return (code_today(op, kernels, folders) if folders else {}), why

    def _extracted(self, commit: str, roots: tuple[Path, ...]) -> tuple[tuple[Path, ...], str]:
        if why := why_absent(self._project.root, commit):
            return (), why
        try:
            into = Path(self._scratch.name) / commit
            return extract(self._project.root, BaseCommit(asked=commit, commit=commit, merge_base=False), roots, into).roots, ""
        except UsageError as error:
            return (), str(error)
