"""The kernels of commits, unpacked from the repository into folders of their own and declared by a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from ..config import Project
from ..errors import FusebenchError
from ..registry import Declarations
from ..runner.ab.command import declared_base
from ..runner.evidence.base_checkout import BaseChoice, BaseCommit, extract
from ..schema import Case, KernelId
from ..store.comparison_record import BaseRevision


class UnpackedCommit(BaseChoice, frozen=True, kw_only=True):
    """A base revision whose kernels folders lie unpacked already."""

    revision: BaseRevision
    roots: tuple[Path, ...]

    def resolve(self, project: Project, roots: Sequence[Path], scratch: Path) -> tuple[BaseRevision, tuple[Path, ...]]:
        return self.revision, self.roots


class Checkouts:
    """Kernels by commit, each unpacked and declared once."""

    def __init__(self, project: Project, roots: Sequence[Path], case: Case, scratch: Path, note: Callable[[str], None]) -> None:
        """
        Args:
            roots: the kernels folders of the checkout.
            scratch: a folder for the unpacked ones.
            note: takes what a reader of the screen should know; loading takes seconds.
        """
        self._project, self._roots, self._case, self._scratch, self._note = project, roots, case, scratch, note
        self._kernels: dict[str, Declarations] = {}

    def kernels(self, commit: str) -> Declarations:
        """The kernels of `commit` with all that they say of the case.

        Raises:
            FusebenchError: the commit lacks the folder, or its op cannot be loaded.
        """
        if commit not in self._kernels:
            folders = extract(
                self._project.root, BaseCommit(asked=commit, commit=commit, merge_base=False), self._roots, self._folder(commit)
            )
            self._note(f"loading the kernels of commit {commit[:12]}")
            self._kernels[commit] = declared_base(folders.roots, [self._case])
        return self._kernels[commit]

    def base(self, commit: str) -> UnpackedCommit:
        """`commit` as the base of a comparison."""
        return UnpackedCommit(ref=commit, exact=True, revision=BaseRevision(asked=commit, commit=commit), roots=self.kernels(commit).roots)

    def missing(self, commit: str, kernel: KernelId) -> str:
        """Why `commit` has no such kernel that takes the case; empty if it has one."""
        op = self._case.op
        try:
            kernels = self.kernels(commit)
            problems = "; ".join(
                f"{self._named(problem.file, commit)}: {problem.message}" for problem in kernels.problems if problem.op == op
            )
            if op not in kernels.ops or str(kernel) not in kernels.kernels:
                return f"has no kernel {kernel}" + (f": {problems}" if problems else "")
            return kernels.support(self._case).declined.get(str(kernel), "")
        except (FusebenchError, ValueError) as error:
            return str(error)

    def __enter__(self) -> Checkouts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for kernels in self._kernels.values():
            kernels.close()

    def _folder(self, commit: str) -> Path:
        return self._scratch / commit

    def _named(self, file: Path, commit: str) -> Path:
        return file.relative_to(self._folder(commit)) if file.is_relative_to(self._folder(commit)) else file
