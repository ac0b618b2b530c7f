"""Folders that installed distributions bring: each entry point names a package, of kernels by op or of suite files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

KERNELS_GROUP = "fusebench.kernels"
"""Its packages hold folders of ops, and are loaded by their folder, like any root."""
SUITES_GROUP = "fusebench.suites"
"""Its packages hold suites as TOML files."""


class InstalledFolder(NamedTuple):
    """A folder, and the distribution that brings it."""

    path: Path
    distribution: str
    """Name and version: `acme-kernels 1.2`; the entry point's name if the distribution is unknown."""


class BrokenEntryPoint(NamedTuple):
    """An entry point that leads to no folder."""

    value: str
    message: str


def installed_folders(group: str) -> tuple[list[InstalledFolder], list[BrokenEntryPoint]]:
    """The folders that the entry points of `group` name, and the entry points that name none."""
    import importlib.metadata  # slow to import, and not needed to declare a kernel
    import importlib.util

    folders: list[InstalledFolder] = []
    broken: list[BrokenEntryPoint] = []
    for entry_point in importlib.metadata.entry_points(group=group):
        content = "TOML files are suites" if group == SUITES_GROUP else "folders are ops"
        cause = f"it is not a package; name a package whose {content}"
        locations: list[str] = []
        try:
            locations = _folders_of(entry_point.value)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a distribution concerns that distribution alone
            cause = f"{type(error).__name__}: {error}"
        found = entry_point.dist
        distribution = f"{found.name} {found.version}" if found is not None else entry_point.name
        folders += [InstalledFolder(Path(location), distribution) for location in locations]
        if not locations:
            message = f"entry point {entry_point.name!r} of group {group!r} cannot be loaded: {cause}"
            broken.append(BrokenEntryPoint(entry_point.value, message))
    return folders, broken


def _folders_of(package: str) -> list[str]:
    """The folders of a package; none for a module. No code of the package or of its parents is executed.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    first, *rest = package.split(".")
    spec = find_spec(first)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {first!r}")
    folders = [Path(one) for one in spec.submodule_search_locations or ()]
    for depth, name in enumerate(rest, start=2):
        # Python's own search would ask the parent package, which is not there.
        found = [folder / name for folder in folders if (folder / name).is_dir()]
        if not found and not any((folder / f"{name}.py").is_file() for folder in folders):
            raise ModuleNotFoundError(f"No module named {'.'.join(package.split('.')[:depth])!r}")
        folders = next(([folder] for folder in found if (folder / "__init__.py").is_file()), found)
    return [str(folder) for folder in folders]
