"""Suites: TOML files of named cases, read strictly.

A suite is found by the `name` that its file gives it, in any file under the project's suites folders or those of installed packages
(entry points of the group `fusebench.suites`), or given as a path.
It may include others by name; included cases keep their suite's name (`models/flux1_dev:qk_joint`).
Every fault of a file is one `SuiteError` with file, line and key path. An unknown name is an `UnknownNameError` with the nearest known
name. Reading a suite needs the ops' parameter types, hence their op.py, but no torch.
"""

from __future__ import annotations

import functools
import math
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..config import Project, why_no_suites
from ..errors import SuiteError, UnknownNameError, UsageError, nearest
from ..registry import DeclaredOp, Op
from ..registry.loading.installed import SUITES_GROUP, InstalledFolder, installed_folders
from ..schema import Case, Suite
from ..toml_errors import Keys, TomlFile

Ops = Mapping[str, Op] | Mapping[str, DeclaredOp]
"""Ops by name, of this process or as another one declares them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Case names and each part of a suite's name: they become parts of file names and of `suite:case`."""
MOST_NAMED = 3
"""Suites that a message names before the thing it is about; more are counted."""


class SuiteListing(msgspec.Struct, frozen=True, kw_only=True):
    """A suite file as `list suites` shows it; `problem` is empty unless the file is refused."""

    name: str
    description: str
    path: str
    cases: int
    origin: str = "project"
    """`project`, `fusebench`, or name and version of the installed distribution that brings it."""
    problem: str = ""


class _SuiteTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str = ""
    include: list[str] = []


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suite: _SuiteTable
    case: list[dict[str, Any]] = []


class _CaseTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    op: str
    params: dict[str, Any]
    weight: float = 1.0
    source: str = ""
    variant: str = ""


def load_suite(name_or_path: str, project: Project, ops: Ops) -> Suite:
    """The suite called `name_or_path` in the project, or at that path.

    A name wins over a path of the same spelling unless it ends in `.toml`.

    Raises:
        UnknownNameError: no suite or file has that name, or an included suite does not exist.
        SuiteError: the file or one that it includes is refused, or several files give their suite that name.
    """
    reader = _Reader(project, ops)
    return reader.read(_resolve(name_or_path, reader.files, project))


def suite_names(project: Project) -> list[str]:
    """The names of the project's suites, sorted; no case is read, so that this is quick."""
    return list(_suite_files(project))


def list_suites(project: Project, ops: Ops | None = None) -> list[SuiteListing]:
    """Every suite file of the project, by name; a file that is refused is listed with its problem.

    Without `ops`, cases are counted and their own keys checked, but op names and params are not.
    """
    listings, reader = [], _Reader(project, ops)
    for name, paths in reader.files.items():
        for path in paths:
            shown, origin = _stored_path(path, project), _origin(path, project)
            try:
                suite = reader.read(path)
                if len(paths) > 1:
                    raise _ambiguous(name, paths, project)
            except UsageError as error:
                listings.append(SuiteListing(name=name, description="", path=shown, cases=0, origin=origin, problem=str(error)))
            else:
                cases = len(suite.cases)
                listings.append(SuiteListing(name=name, description=suite.description, path=shown, cases=cases, origin=origin))
    return listings


def select_cases(suites: Sequence[Suite], op: str | None = None, case_glob: str | None = None) -> list[Case]:
    """Cases of `suites`, in file order, of `op` and whose name or `suite:name` matches `case_glob`; None selects all.

    Several ops, and several globs, stand with commas between them.  A case of a suite that several of `suites` include is there once.

    Raises:
        UnknownNameError: no case is of an op that is named, or a glob matches none.
    """
    cases = list({case.key: case for suite in suites for case in suite.cases}.values())
    names = [suite.name for suite in suites]
    where = f"suite {', '.join(names)}" if len(names) <= MOST_NAMED else f"{len(names)} suites"
    if op is not None:
        known = {case.op for case in cases}
        for name in op.split(","):
            if name not in known:
                raise UnknownNameError("op", name, known, where)
        cases = [case for case in cases if case.op in op.split(",")]
    if case_glob is not None:
        for glob in case_glob.split(","):
            if not any(case.matches(glob) for case in cases):
                raise UnknownNameError("case", glob, {case.name for case in cases}, where)
        cases = [case for case in cases if case.matches(case_glob)]
    return cases


def _suite_files(project: Project) -> dict[str, list[Path]]:
    """Suite name -> its files; more than one where several files give their suite that name.

    A suite of the project hides one that comes with fusebench.
    """
    files: dict[str, list[Path]] = {}
    hiding: set[str] = set()
    for folder in _suite_folders(project):
        for file in sorted(folder.rglob("*.toml")):
            name = _name_in(file) or file.relative_to(folder).with_suffix("").as_posix()
            if not (name in hiding and project.is_shipped(file)):
                files.setdefault(name, []).append(file)
            if folder in project.suites:
                hiding.add(name)
    return dict(sorted(files.items()))


def _suite_folders(project: Project) -> list[Path]:
    """The project's own suites folders, then those of installed packages, then fusebench's."""
    own = [folder for folder in project.suites if not project.is_shipped(folder)]
    resolved = [folder.resolve() for folder in own]  # a project that is itself installed is named twice
    installed = [one.path for one in _installed(tuple(sys.path)) if one.path.resolve() not in resolved]
    return [*own, *installed, *(folder for folder in project.suites if folder not in own)]


@functools.cache
def _installed(_path: tuple[str, ...]) -> tuple[InstalledFolder, ...]:
    """The folders of installed packages; loading the ops tells of entry points that lead to none.

    Args:
        _path: the search path of modules, on which the answer depends.
    """
    return tuple(installed_folders(SUITES_GROUP)[0])


def _origin(file: Path, project: Project) -> str:
    if project.is_shipped(file):
        return "fusebench"
    if any(file.is_relative_to(folder) for folder in project.suites):
        return "project"
    return next((one.distribution for one in _installed(tuple(sys.path)) if file.is_relative_to(one.path)), "project")


def _name_in(file: Path) -> str:
    """The name that a suite file gives its suite; empty if the file has none that is valid, so that it is listed with its problem."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    # The cases are nearly all of a file, and parsing them takes nearly all of the time.
    for part in (text.partition("\n[[case]]")[0], text):
        try:
            name = tomllib.loads(part)["suite"]["name"]
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        return name if isinstance(name, str) and _is_suite_name(name) else ""
    return ""


def _is_suite_name(name: str) -> bool:
    return all(_NAME.fullmatch(part) for part in name.split("/"))


def _resolve(name_or_path: str, files: Mapping[str, Sequence[Path]], project: Project) -> Path:
    paths = files.get(name_or_path, [])
    if len(paths) > 1:
        raise _ambiguous(name_or_path, paths, project)
    if paths:
        return paths[0]
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.suffix == ".toml":
        close = nearest(path.stem, files)
        remedy = f"did you mean the suite {close!r}?" if close else "see `fusebench list suites`"
        raise SuiteError(f"suite file {name_or_path} does not exist; {remedy}")
    for file in (folder / f"{name_or_path}.toml" for folder in project.suites):
        if name := next((name for name, its_files in files.items() if file in its_files), ""):
            shown = _stored_path(file, project)
            raise SuiteError(
                f"unknown suite {name_or_path!r}: the file {shown} calls its suite {name!r}; use that name, or the file's path"
            )
    if not files and (why := why_no_suites(project)):
        raise SuiteError(f"unknown suite {name_or_path!r}; there are none: {why}")
    raise UnknownNameError("suite", name_or_path, files)


def _ambiguous(name: str, paths: Sequence[Path], project: Project) -> SuiteError:
    homes = {next(folder for folder in _suite_folders(project) if path.is_relative_to(folder)) for path in paths}
    places = "is in several suites folders" if len(homes) == len(paths) else "is the name in several files"
    return SuiteError(f"suite {name!r} {places}: {', '.join(map(str, paths))}; rename all but one, or give a path")


def _stored_path(path: Path, project: Project) -> str:
    """The path relative to the project's root if it lies inside, else absolute."""
    resolved = path.resolve()
    return resolved.relative_to(project.root).as_posix() if resolved.is_relative_to(project.root) else str(resolved)


class _Reader:
    """Reads a project's suite files, each once, and follows their includes."""

    def __init__(self, project: Project, ops: Ops | None) -> None:
        self.files = _suite_files(project)
        self._project, self._ops = project, ops
        self._read: dict[Path, Suite] = {}

    def read(self, path: Path, trail: tuple[Path, ...] = ()) -> Suite:
        """The suite at `path`. Each file of `trail` includes the next, the last includes `path`; none of them may be included again
        below."""
        resolved = path.resolve()
        if resolved not in self._read:
            self._read[resolved] = self._parse(path, (*trail, resolved))
        return self._read[resolved]

    def _parse(self, path: Path, trail: tuple[Path, ...]) -> Suite:
        resolved, here = path.resolve(), Path.cwd()
        file = TomlFile.read(path, str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(resolved))
        document = file.convert(file.document, _Document)
        table = document.suite
        _check_suite_name(file, table.name)
        if not document.case and not table.include:
            raise file.error(("suite",), "found no [[case]], expected at least one; add one")
        cases = _parse_cases(file, document, self._ops)
        included: dict[str, str] = {}
        through = {table.name: table.name}  # by which entry of the list a suite comes along
        for index, name in enumerate(table.include):
            child = self._include(file, ("suite", "include", index), name, trail)
            for found, its_path in {child.name: child.path, **child.included}.items():
                if found in through:
                    what = repr(name) if found == name else f"{name!r}, which brings {found!r}"
                    again = " a second time" if through[found] == found else f"; {through[found]!r} brings it already"
                    raise file.error(("suite", "include", index), f"found {what}{again}, expected each suite once; remove one")
                through[found] = name
                included[found] = its_path
            cases += child.cases
        return Suite(
            name=table.name,
            description=table.description,
            path=_stored_path(path, self._project),
            cases=tuple(cases),
            included=included,
        )

    def _include(self, file: TomlFile, keys: Keys, name: str, trail: tuple[Path, ...]) -> Suite:
        paths = self.files.get(name, [])
        if not paths:
            raise UnknownNameError("suite", name, self.files, file.where(keys))
        if len(paths) > 1:
            raise file.error(keys, str(_ambiguous(name, paths, self._project)))
        if paths[0].resolve() in trail:
            chain = [_stored_path(one, self._project) for one in trail[trail.index(paths[0].resolve()) :]]
            way = f" by way of {' and '.join(chain[1:])}" if chain[1:] else ""
            raise file.error(keys, f"found {name!r}, which includes itself{way}, expected no cycle; remove it")
        return self.read(paths[0], trail)


def _parse_cases(file: TomlFile, document: _Document, ops: Ops | None) -> list[Case]:
    cases: dict[str, Case] = {}
    places: dict[str, int] = {}
    for index, raw in enumerate(document.case):
        keys: Keys = ("case", index)
        for one in _swept(file, keys, raw, ops):
            case = _parse_case(file, keys, one, document.suite.name, ops)
            if case.name in cases:
                line = file.line_of(("case", places[case.name], "name"))
                raise file.error(
                    (*keys, "name"), f"found a second case {case.name!r}, expected unique names; rename it or the one on line {line}"
                )
            cases[case.name], places[case.name] = case, index
    return list(cases.values())


def _swept(file: TomlFile, keys: Keys, raw: dict[str, Any], ops: Ops | None) -> list[dict[str, Any]]:
    """The case table, or one for each value of the parameter that is a list of values.

    A parameter that the op itself declares as a list is none to sweep over; without `ops`, a list is taken for a sweep.
    """
    params, op = raw.get("params"), (ops or {}).get(str(raw.get("op")))
    if not isinstance(params, dict):
        return [raw]
    lists = [name for name, value in params.items() if isinstance(value, list) and not (op is not None and name in op.lists)]
    if not lists:
        return [raw]
    (name, *more), values = lists, params[lists[0]]
    if more:
        message = f"found a second list beside {name!r}, expected a sweep over one parameter; give one value"
        raise file.error((*keys, "params", more[0]), message)
    plain = [value for value in values if isinstance(value, int | float | str)]
    if not values or len(plain) != len(values) or len(set(map(str, plain))) != len(plain):
        message = f"found {values}, expected one value, or a list of numbers or words, each once; correct the list"
        raise file.error((*keys, "params", name), message)
    if "weight" in raw and ops is not None:
        message = f"found a weight beside the sweep over {name!r}: no model launches every value of a sweep; leave it out"
        raise file.error((*keys, "weight"), message)
    return [{**raw, "name": f"{raw.get('name', '')}_{value}", "params": {**params, name: value}} for value in values]


def _check_suite_name(file: TomlFile, name: str) -> None:
    if not _is_suite_name(name):
        message = f"found {name!r}, expected letters, digits, '_', '-' and '.', in parts separated by '/'; rename the suite"
        raise file.error(("suite", "name"), message)


def _parse_case(file: TomlFile, keys: Keys, raw: dict[str, Any], suite: str, ops: Ops | None) -> Case:
    table = file.convert(raw, _CaseTable, keys)
    if not _NAME.fullmatch(table.name):
        raise file.error((*keys, "name"), f"found {table.name!r}, expected letters, digits, '_', '-' and '.'; rename the case")
    if table.variant and not _NAME.fullmatch(table.variant):
        raise file.error((*keys, "variant"), f"found {table.variant!r}, expected letters, digits, '_', '-' and '.'; rename the variant")
    if not (math.isfinite(table.weight) and table.weight > 0):
        message = f"found {table.weight:g}, expected launches per denoise step, more than 0; use 1 where no weights are published"
        raise file.error((*keys, "weight"), message)
    if ops is not None:
        if table.op not in ops:
            raise UnknownNameError("op", table.op, ops, file.where((*keys, "op")))
        refusal = ops[table.op].refusal(table.params)
        if refusal is not None:
            raise file.refuse(refusal, (*keys, "params"))
    return Case(
        suite=suite,
        name=table.name,
        op=table.op,
        params=dict(table.params),
        weight=table.weight,
        source=table.source,
        variant=table.variant,
    )
