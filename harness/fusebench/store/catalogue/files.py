"""The files of a catalogue: write one per run, merge those of a month, make all again, and find those that a query reads.

Every file appears whole and is never changed, so a crash at any moment leaves a catalogue that can be read: at worst it lacks a run, or
holds one in two files, of which a reader takes one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from ...errors import FusebenchError, RunRecordError
from ...schema import Run
from ..finding import superseded
from .rows import CATALOGUE, CATALOGUE_VERSION, RUNS_KEY, SUFFIX, encode, file_of, run_table

if TYPE_CHECKING:
    import pyarrow

MERGED = "merged-"
"""Start of the name of a file that holds several runs."""
_ROOT = f"{CATALOGUE}/v{CATALOGUE_VERSION}"


class CatalogueError(FusebenchError):
    """A catalogue that cannot be read: a file is cut off or garbled, or a newer fusebench wrote it."""


class Files(Protocol):
    """A folder of results, here or on a store."""

    def read(self, path: str) -> bytes | None: ...

    def names(self, folder: str) -> list[str]: ...

    def files_below(self, folder: str) -> dict[str, int]: ...

    def write(self, path: str, content: bytes, *, new: bool = False) -> None: ...

    def remove(self, path: str) -> None: ...

    def where(self, path: str) -> str: ...


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the catalogue, and the runs in it that a reader takes from it."""

    path: str
    size: int
    """Bytes."""
    left_out: tuple[str, ...] = ()
    """Names of the folders of its runs that another file holds, too."""


def add(files: Files, run: Run) -> None:
    """Write the file of `run`, and remove those of stopped runs that it went on with, whose measurements it holds.

    A run that is in the catalogue already keeps its file, and a shard has none: the joined run has.
    """
    path = file_of(run)
    if run.shard or files.read(path) is not None:
        return
    files.write(path, encode(run_table(run), [_name(path)]))
    if run.complete and run.resumed_from:
        for old in files.files_below(_ROOT):
            if _name(old).partition("_")[2] in run.resumed_from:
                files.remove(old)


def parts(files: Files, devices: Collection[str] | None = None) -> list[Part]:
    """The files that hold every run of the catalogue once.

    Args:
        devices: slugs of device models; None for all.

    Raises:
        CatalogueError: a newer fusebench wrote files, or a merged file cannot be read.
    """
    for name in files.names(CATALOGUE):
        version = name.removeprefix("v")
        if not version.isdecimal() or int(version) > CATALOGUE_VERSION:
            raise CatalogueError(
                f"{files.where(f'{CATALOGUE}/{name}')}: of a newer version than this fusebench reads (up to v{CATALOGUE_VERSION}); upgrade "
                "fusebench, or make the catalogue anew elsewhere with `fusebench catalogue rebuild`"
            )
    found: list[Part] = []
    for months in _partitions(files).values():
        found += _once(files, [one for one in months if devices is None or device_of(one.path) in devices])
    return found


def device_of(path: str) -> str:
    """The slug of the device model of a catalogue's file."""
    return next(part.partition("=")[2] for part in path.split("/") if part.startswith("device="))


def month_of(path: str) -> str:
    """The month of a catalogue's file: `2026-07`."""
    return next(part.partition("=")[2] for part in path.split("/") if part.startswith("month="))


def rebuild(files: Files, runs: Iterator[Run]) -> int:
    """Write the files of `runs` anew, remove all others, and return the number of runs.  A stopped run that another one went on with, and
    whose measurements that one holds, has none.

    A reader meanwhile sees every run that the catalogue held: a file is removed when those of its runs are written.
    """
    old = set(files.files_below(CATALOGUE))
    new: dict[str, str] = {}
    """Files by run."""
    resumed: list[tuple[Run, Set[str]]] = []
    """Stopped runs and those that went on with one, without their content, and their cases."""
    for run in runs:
        if run.shard:
            continue
        new[run.id] = file_of(run)
        files.write(new[run.id], encode(run_table(run), [_name(new[run.id])]))
        if run.resumed_from or not run.complete:
            stub = msgspec.structs.replace(run, cases=[], results=[], kernels=[], suites=[])
            resumed.append((stub, {one.case.key for one in run.cases}))
    twice = superseded(resumed)
    kept = {path for one, path in new.items() if one not in twice}
    for path in sorted({*old, *new.values()} - kept):
        files.remove(path)
    return len(kept)


def merge(files: Files, *, keep_newest: bool = True) -> int:
    """Merge the files of every month into one, and return the number of files that went.

    Args:
        keep_newest: leave the newest month of each device model as it is: more runs will come.
    """
    import pyarrow

    partitions = _partitions(files)
    newest = {device: max(month for one, month in partitions if one == device) for device, _ in partitions}
    gone = 0
    for (device, month), there in partitions.items():
        if len(there) < 2 or (keep_newest and month == newest[device]):
            continue
        taken = _once(files, there)
        tables, names = list[pyarrow.Table](), list[str]()
        for one in taken:
            table, held = _table(files, one.path)
            keep = [name for name in held if name not in one.left_out]
            ids = pyarrow.array([name.partition("_")[2] for name in keep])
            tables.append(table if len(keep) == len(held) else table.filter(pyarrow.compute.is_in(table["run"], ids)))
            names += keep
        content = encode(pyarrow.concat_tables(tables, promote_options="default"), sorted(names))
        folder = there[0].path.rpartition("/")[0]
        target = f"{folder}/{MERGED}{len(names):04d}-{hashlib.sha256(' '.join(sorted(names)).encode()).hexdigest()[:12]}{SUFFIX}"
        files.write(target, content)
        for one in there:
            if one.path != target:
                files.remove(one.path)
                gone += 1
    return gone


def read_table(content: bytes, where: str) -> tuple[pyarrow.Table, list[str]]:
    """The rows of a catalogue's file, and the names of the folders of its runs.

    Raises:
        CatalogueError: it is cut off or garbled.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)
        names = (table.schema.metadata or {})[RUNS_KEY].decode().split()
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(where, len(content), error) from error
    return table, names


def damaged(where: str, size: int, error: object) -> CatalogueError:
    """The error of a file that is cut off or garbled."""
    return CatalogueError(
        f"{where}: cut off or garbled ({size} bytes): {error}; no run is lost: make it again with `fusebench catalogue rebuild`"
    )


class Folder:
    """A folder of results on this machine, with the methods of a store."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        there = self.root / folder
        return sorted(one.name for one in there.iterdir() if not one.name.startswith(".")) if there.is_dir() else []

    def files_below(self, folder: str) -> dict[str, int]:
        found = sorted(one for one in (self.root / folder).rglob("*") if one.is_file() and not one.name.startswith("."))
        return {one.relative_to(self.root).as_posix(): one.stat().st_size for one in found}

    def write(self, path: str, content: bytes, *, new: bool = False) -> None:
        from ..files import write_file

        if new and self.read(path) not in (None, content):
            raise FileExistsError(self.where(path))
        write_file(self.root / path, content)

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def where(self, path: str) -> str:
        return str(self.root / path)


def _partitions(files: Files) -> Mapping[tuple[str, str], list[Part]]:
    """The files by device and month, by name."""
    found: dict[tuple[str, str], list[Part]] = {}
    for path, size in files.files_below(_ROOT).items():
        if path.endswith(SUFFIX):
            found.setdefault((device_of(path), month_of(path)), []).append(Part(path=path, size=size))
    return found


def _once(files: Files, there: Sequence[Part]) -> list[Part]:
    """The files of one month that hold each of its runs once: the merged ones with the most runs first, then those of single runs."""
    merged = sorted((one for one in there if _name(one.path).startswith(MERGED)), key=lambda one: _name(one.path), reverse=True)
    if not merged:
        return list(there)
    single = {_name(one.path): one for one in there if one not in merged}
    held, found = set[str](), list[Part]()
    for one in merged if single or len(merged) > 1 else ():
        _, names = _table(files, one.path)
        twice = held.intersection(names)
        if len(twice) < len(names):
            found.append(msgspec.structs.replace(one, left_out=tuple(sorted(twice))))
        held.update(names)
    return [*(found or merged), *(one for name, one in single.items() if name not in held)]


def _table(files: Files, path: str) -> tuple[pyarrow.Table, list[str]]:
    content = files.read(path)
    if content is None:
        raise RunRecordError(f"{files.where(path)}: was removed meanwhile; try again")
    return read_table(content, files.where(path))


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(SUFFIX)
