"""The selection of a command: the project, its ops and kernels, and the cases that the SELECTION options choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UnknownNameError, UsageError
from ...schema import Case, KernelId, Suite
from .output import patience, remark

LOADING = "loading the kernels; later commands reuse the answers"

if TYPE_CHECKING:
    from ...config import Project
    from ...registry import Problem
    from .kernel_listing import KeptDeclarations


@dataclass(frozen=True)
class Selection:
    """Resolved SELECTION options."""

    project: Project
    collection: KeptDeclarations
    suites: tuple[Suite, ...]
    cases: tuple[Case, ...]
    kernel: str | None
    """Glob that kernels must match; at least one kernel of the collection does, if kernels were loaded."""
    refused: tuple[str, ...] = ()
    """Reasons why suite files were skipped when all suites were selected."""

    @property
    def ops(self) -> frozenset[str]:
        """Of the chosen cases."""
        return frozenset(case.op for case in self.cases)

    @property
    def exact_kernel(self) -> KernelId | None:
        """The one selected kernel, where `kernel` is a full id `op/name@version`."""
        return _exact(self.kernel)


def load_project(kernels: Sequence[Path] | None = None, *, load_kernels: bool) -> tuple[Project, KeptDeclarations]:
    """The project around the current folder and its ops, with their kernels on demand.

    A process of its own executes their files, unless its earlier answers are still valid. Files that fail to load are named on stderr,
    one line each; the rest works.
    """
    from ...config import find_project, unused_kernels
    from ...registry.collection import all_roots
    from .kernel_listing import KeptDeclarations

    project = find_project()
    if not kernels and (folder := unused_kernels(project)) is not None:
        remark("note", f"{folder} is not used: no pyproject.toml names it; add [tool.fusebench] to one, or pass --kernels {folder.name}")
    roots, problems = all_roots(project.kernels_with(kernels))
    collection = KeptDeclarations(roots, problems)
    if load_kernels:
        with patience(LOADING):
            collection.load_kernels()
    _warn_of(collection.problems, project)
    return project, collection


def resolve_selection(
    *,
    suite: Sequence[str] | None = None,
    op: str | None = None,
    kernel: str | None = None,
    case: str | None = None,
    kernels: Sequence[Path] | None = None,
    load_kernels: bool = True,
    all_suites: bool = False,
    narrow: bool = False,
) -> Selection:
    """Resolve the SELECTION options; several ops or globs of one option have commas between them.

    Without `suite`, the suite named like `op` is taken; without both, every suite when `all_suites` allows it.  Names are resolved before
    any kernel is loaded, which takes seconds; a command that has more to refuse passes `load_kernels=False` and calls `with_kernels` later.
    The kernels are then unknown to it, except that a `kernel` which matched none when they were last loaded is refused here already.

    Raises:
        UsageError: nothing selects a suite.
        UnknownNameError: a suite, op, kernel or case that does not exist.
        SuiteError: a suite file that is refused.
    """
    project, ops = load_project(kernels, load_kernels=False)
    for name in op.split(",") if op is not None else ():
        ops.op(name)
    suites, refused = _choose_suites(project, ops, suite, op, all_suites)
    from ...suites import select_cases

    selection = Selection(project, ops, suites, tuple(select_cases(suites, op, case)), kernel, refused)
    if kernel is not None:
        ops.require_known_match(kernel)
    return with_kernels(selection, narrow=narrow) if load_kernels else selection


def with_kernels(selection: Selection, *, narrow: bool = False, silence_s: float | None = None) -> Selection:
    """`selection`, whose collection holds ops alone, with their kernels and with all that they say of the chosen cases.

    With `narrow` only the kernels of the chosen cases' ops are loaded, or the one that the selection names in full, for commands whose
    start is worth shortening.

    Args:
        silence_s: seconds after which the code of one kernel file counts as hung.

    Raises:
        UnknownNameError: no kernel matches the selection's.
    """
    project, collection, kernel = selection.project, selection.collection, selection.kernel
    collection.silence_s = silence_s
    before = collection.problems
    with patience(LOADING):
        if not narrow:
            collection.load_kernels()
        else:
            collection.load_kernels(only=selection.ops, kernel=selection.exact_kernel, operators=False)
            # If none matches, the kernels of all ops, so that the error can name the nearest.
            if kernel is not None and not any(one.id.matches(kernel) for one in collection.kernels.values()):
                collection.load_kernels(operators=False)
        collection.learn(selection.cases)
    _warn_of([problem for problem in collection.problems if problem not in before], project)
    keep_listing(project, collection)
    if kernel is not None:
        collection.require_match(kernel)
    return selection


def load_all(project: Project, collection: KeptDeclarations) -> None:
    """Have all kernels of `collection` loaded, which holds ops alone; files that fail to load are named on stderr."""
    before = collection.problems
    with patience(LOADING):
        collection.load_kernels()
    _warn_of([problem for problem in collection.problems if problem not in before], project)


def keep_listing(project: Project, collection: KeptDeclarations) -> None:
    """Keep new answers for later commands; after a load of all kernels those on the cases of every suite."""

    def all_cases() -> Sequence[Case]:
        from ...suites import select_cases

        return select_cases(_choose_suites(project, collection, None, None, all_suites=True)[0])

    with patience(LOADING):
        collection.keep(all_cases)


def _exact(kernel: str | None) -> KernelId | None:
    try:
        return KernelId.parse(kernel or "")
    except ValueError:
        return None


def _warn_of(problems: Iterable[Problem], project: Project) -> None:
    for problem in problems:
        file = problem.file
        shown = file.relative_to(project.root) if file.is_relative_to(project.root) else file
        remark("warning", f"{shown}: {problem.message}")


def _choose_suites(
    project: Project, collection: KeptDeclarations, names: Sequence[str] | None, op: str | None, all_suites: bool
) -> tuple[tuple[Suite, ...], tuple[str, ...]]:
    from ...config import why_no_suites
    from ...suites import list_suites, load_suite

    if names:
        return _distinct([load_suite(name, project, collection.ops) for name in names]), ()
    listings = list_suites(project, collection.ops)
    known = [listing.name for listing in listings]
    if all_suites:
        valid = [load_suite(listing.name, project, collection.ops) for listing in listings if not listing.problem]
        if op is not None:
            valid = [one for one in valid if any(each.op in op.split(",") for each in one.cases)]
        return tuple(valid), tuple(listing.problem for listing in listings if listing.problem)
    if op is not None and set(op.split(",")) <= set(known):
        return _distinct([load_suite(name, project, collection.ops) for name in op.split(",")]), ()
    none = why_no_suites(project) or "this project has none; pass a path to a TOML file"
    there_are = f"there are {', '.join(known)}" if known else none
    if op is not None:
        absent = next(name for name in op.split(",") if name not in known)
        raise UnknownNameError("suite", absent, known, f"--op {absent} without --suite means the suite of the same name")
    raise UsageError(f"no suite selected: pass --suite NAME ({there_are}) or --op NAME")


def _distinct(suites: Sequence[Suite]) -> tuple[Suite, ...]:
    """`suites` without repetitions; UsageError for two files that give their suite, or one they include, the same name."""
    found: dict[str, Suite] = {}
    paths: dict[str, str] = {}
    for suite in suites:
        for name, path in {suite.name: suite.path, **suite.included}.items():
            other = paths.setdefault(name, path)
            if other != path:
                raise UsageError(f"--suite: {other} and {path} are both called {name!r}; select one, or rename one")
        found.setdefault(suite.name, suite)
    return tuple(found.values())
