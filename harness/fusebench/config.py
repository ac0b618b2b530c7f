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
    kernels: list[str] = ["kernels"]
    suites: list[str] = ["suites"]
    results: str = "results"


def find_project(start: Path | None = None) -> Project:
    """The project around `start` (the current folder by default).

    Without a pyproject.toml that has [tool.fusebench], `start` itself is taken as the root with no kernel or suite folder of
    its own: kernels then come from `--kernels` and entry points, suites from paths.

    Raises:
        UsageError: the table holds an unknown key or a wrong type.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _read_table(file)
            if table is not None:
                return Project(
                    root=folder,
                    kernels=tuple(folder / entry for entry in table.kernels),
                    suites=tuple(folder / entry for entry in table.suites),
                    results=folder / table.results,
                )
    return Project(root=here, kernels=(), suites=(), results=here / "results")


def _read_table(file: Path) -> _Table | None:
    try:
        tool = tomllib.loads(file.read_text()).get("tool", {})
        return msgspec.convert(tool["fusebench"], _Table) if "fusebench" in tool else None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{file}: [tool.fusebench]: {error}") from error
