"""The folders of a project's kernels, suites and results: `[tool.fusebench]` of the nearest pyproject.toml.

An installed wheel brings ops, kernels and suites of its own. They come after a project's own, and stand alone without a project.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from .errors import UsageError
from .toml_errors import TomlFile

SHIPPED = Path(__file__).parent / "_shipped"
"""Folders `kernels` and `suites` of an installed wheel; an editable install has none, since the checkout's own are used."""


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute paths of one project."""

    root: Path
    kernels: tuple[Path, ...]
    """The project's own folders, then the one that comes with fusebench."""
    suites: tuple[Path, ...]
    """The project's own folders, then fusebench's; a project's suite hides a shipped one of the same name."""
    results: Path
    shipped: Path | None = None
    """Fusebench's own `kernels` and `suites`; None if the installation has none, or the project excludes them."""
    configured: bool = True
    """Whether a pyproject.toml defines the project; without one, `root` is the current folder."""

    def kernels_with(self, folders: Sequence[Path] | None) -> tuple[Path, ...]:
        """`folders` in place of the project's own, if given, followed by fusebench's own."""
        return (*folders, *(each for each in self.kernels if self.is_shipped(each))) if folders else self.kernels

    def is_shipped(self, path: Path) -> bool:
        """Whether `path` comes with fusebench."""
        return self.shipped is not None and path.is_relative_to(self.shipped)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernels: list[str] | None = None
    """`kernels` where that folder exists, unless given."""
    suites: list[str] | None = None
    """`suites` where that folder exists, unless given."""
    results: str = "results"
    shipped: bool = True
    """Whether the ops, kernels and suites that come with fusebench are there too."""


def find_project(start: Path | None = None) -> Project:
    """The project around `start` (the current folder by default).

    Without a pyproject.toml that has [tool.fusebench], `start` itself is taken as the root with no kernel or suite folder of
    its own: kernels then come with fusebench, from `--kernels` and from entry points, suites with fusebench and from paths.

    Raises:
        UsageError: the current folder was deleted; the file is not TOML; or the table holds an unknown key or a wrong type, or names a
            folder that does not exist.
    """
    try:
        here = (start or Path.cwd()).resolve()
    except FileNotFoundError as error:
        raise UsageError("the current folder does not exist any more; go to another one with cd") from error
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _read_table(file)
            if table is not None:
                shipped = SHIPPED if table.shipped and SHIPPED.is_dir() else None
                return Project(
                    root=folder,
                    kernels=_with_shipped(_folders(file, "kernels", table.kernels), shipped, "kernels"),
                    suites=_with_shipped(_folders(file, "suites", table.suites), shipped, "suites"),
                    results=folder / table.results,
                    shipped=shipped,
                )
    shipped = SHIPPED if SHIPPED.is_dir() else None
    return Project(
        root=here,
        kernels=_with_shipped((), shipped, "kernels"),
        suites=_with_shipped((), shipped, "suites"),
        results=here / "results",
        shipped=shipped,
        configured=False,
    )


def why_no_suites(project: Project) -> str:
    """Why `project` has no suite, and what to do, where fusebench runs from its checkout, which ships none; empty otherwise."""
    if SHIPPED.is_dir() or project.suites:
        return ""
    return (
        f"an editable install of fusebench brings no suites outside its checkout; run in {Path(__file__).parents[2]}, or install the wheel"
    )


def unused_kernels(project: Project) -> Path | None:
    """The folder `kernels` at the root, if no pyproject.toml makes a project of it and a file in it declares a kernel or an op."""
    folder = project.root / "kernels"
    if project.configured or not folder.is_dir():
        return None
    files = sorted(folder.glob("*/[!_]*.py"))[:20]
    return folder if any(b"fusebench" in file.read_bytes() for file in files if file.is_file()) else None


def _with_shipped(own: tuple[Path, ...], shipped: Path | None, name: str) -> tuple[Path, ...]:
    return own if shipped is None else (*own, shipped / name)


def _folders(file: Path, key: str, entries: list[str] | None) -> tuple[Path, ...]:
    root = file.parent
    if entries is None:
        return (root / key,) if (root / key).is_dir() else ()
    for entry in entries:
        if not (root / entry).is_dir():
            raise UsageError(f"{file}: tool.fusebench.{key}: found {entry!r}, expected a folder of {root}; create it or correct the name")
    return tuple(root / entry for entry in entries)


def has_table(file: Path) -> bool:
    """Whether the pyproject.toml `file` has [tool.fusebench].

    Raises:
        UsageError: it cannot be read, is not TOML, or its table is refused.
    """
    return _read_table(file) is not None


def _read_table(file: Path) -> _Table | None:
    found = TomlFile.read(file, str(file))
    tool = found.document.get("tool")
    return found.convert(tool["fusebench"], _Table, ("tool", "fusebench")) if isinstance(tool, dict) and "fusebench" in tool else None
