"""Where a project keeps its kernels, suites and results: `[tool.fusebench]` of the nearest pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from .errors import UsageError


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute paths of one project."""

    root: Path
    kernels: tuple[Path, ...]
    suites: tuple[Path, ...]
    results: Path


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernels: list[str] | None = None
    """`kernels` where that folder exists, unless given."""
    suites: list[str] | None = None
    """`suites` where that folder exists, unless given."""
    results: str = "results"


def find_project(start: Path | None = None) -> Project:
    """The project around `start` (the current folder by default).

    Without a pyproject.toml that has [tool.fusebench], `start` itself is taken as the root with no kernel or suite folder of
    its own: kernels then come from `--kernels` and entry points, suites from paths.

    Raises:
        UsageError: the file is not TOML, or the table holds an unknown key or a wrong type, or names a folder that does not exist.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _read_table(file)
            if table is not None:
                return Project(
                    root=folder,
                    kernels=_folders(file, "kernels", table.kernels),
                    suites=_folders(file, "suites", table.suites),
                    results=folder / table.results,
                )
    return Project(root=here, kernels=(), suites=(), results=here / "results")


def _folders(file: Path, key: str, entries: list[str] | None) -> tuple[Path, ...]:
    root = file.parent
    if entries is None:
        return (root / key,) if (root / key).is_dir() else ()
    for entry in entries:
        if not (root / entry).is_dir():
            raise UsageError(f"{file}: tool.fusebench.{key}: found {entry!r}, expected a folder of {root}; create it or correct the name")
    return tuple(root / entry for entry in entries)


def _read_table(file: Path) -> _Table | None:
    try:
        tool = tomllib.loads(file.read_bytes().decode("utf-8")).get("tool")
        return msgspec.convert(tool["fusebench"], _Table) if isinstance(tool, dict) and "fusebench" in tool else None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not valid TOML: {error}; correct the file") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: [tool.fusebench]: {error}; the keys are {', '.join(_Table.__struct_fields__)}") from error
