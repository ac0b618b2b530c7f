"""The kernels of some folders as the loader declared them: kept on disk, so that listing and refusing them imports no kernel.

A kernel file may declare its kernels in any way, and may fail to load, so only the loader knows what there is.  Its answer is kept in the
user's cache folder and is used again while nothing that can change it has changed: every file of the folders, the modules imported from
elsewhere, the packages in reach of Python, the environment variables that the files name, and the GPU's driver.  The answer of a load with
problems is never kept, so that they are reported again.  A folder that cannot be written, or a damaged entry, costs time and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...registry import Declarations, Problem
from ...registry.loading.declarations import Listing
from ...schema import Case

MOST_FILES, MOST_BYTES = 5_000, 64 * 2**20
"""Folders with more than this are read by the loader every time: digesting them would take longer than half a second."""
MOST_ENTRIES = 32
"""Entries that are kept, the newest ones: about 100 kB each."""
_VARIABLES = ("CUDA_", "FUSEBENCH_", "LD_LIBRARY_PATH", "NVIDIA_", "PYTORCH_", "TORCH", "TRITON_")
"""Beginnings of the names of environment variables that Python packages for GPUs read when they are imported."""
_IRRELEVANT = frozenset({"_", "FUSEBENCH_CACHE_DIR", "FUSEBENCH_LOCK_DIR"})
"""Variables that count for no kernel: the shell puts the path of the program into `_`."""


class _Entry(msgspec.Struct, kw_only=True):
    files: str
    """Digest of the folders' files."""
    outside: dict[str, tuple[int, int]]
    """Size and time of change, in ns, of each module that was imported from neither the folders nor an installed package."""
    listing: Listing


class ListingFile:
    """The entry for the folders `roots`, in the folder of entries `cache`."""

    def __init__(self, roots: Sequence[Path], cache: Path) -> None:
        self._roots = roots
        contents = _contents(roots)
        self._files = _digest_of(contents) if contents is not None else None
        surroundings = json.dumps([[str(root) for root in roots], _surroundings(contents or {})])
        self._outside: dict[str, tuple[int, int]] = {}
        self._path = cache / f"{hashlib.sha256(surroundings.encode()).hexdigest()[:32]}.json"

    def read(self) -> Listing | None:
        """The kept listing, if it is what the loader would say now."""
        try:
            entry = msgspec.json.decode(self._path.read_bytes(), type=_Entry)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if entry.files != self._files or any(_stamp(file) != tuple(stamp) for file, stamp in entry.outside.items()):
            return None
        self._outside = entry.outside
        return entry.listing

    def keep(self, listing: Listing, modules: Iterable[str] = ()) -> None:
        """Keep what a loader process has said, unless a file has changed meanwhile.

        Args:
            modules: source files of the modules that the process had imported.
        """
        contents = _contents(self._roots)
        if self._files is None or contents is None or _digest_of(contents) != self._files:
            return
        outside = {file: stamp for file in _outside(self._roots, modules) if (stamp := _stamp(file)) is not None}
        entry = _Entry(files=self._files, outside=outside | self._outside, listing=listing)
        making = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            making.write_bytes(msgspec.json.encode(entry))
            making.replace(self._path)  # atomic, so that a reader sees all of one entry
        with suppress(OSError):
            making.unlink(missing_ok=True)
            for old in sorted(self._path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)[:-MOST_ENTRIES]:
                old.unlink(missing_ok=True)


class KeptDeclarations(Declarations):
    """Declarations of `roots`, whose answers are kept for later commands."""

    def __init__(self, roots: Sequence[Path], problems: Iterable[Problem] = ()) -> None:
        self._file = listing_file(roots)
        super().__init__(roots, problems=problems, known=self._file.read())

    def keep(self, cases: Callable[[], Iterable[Case]] = tuple) -> None:
        """Keep new answers, and end the loader process.

        Args:
            cases: gives further cases to ask about, if the process has just loaded all kernels.
        """
        if self.learned and self.listing is not None:
            if self.modules:
                self.learn(cases())
            self._file.keep(self.listing, self.modules)
        self.close()


def listing_file(roots: Sequence[Path]) -> ListingFile:
    """The entry for `roots` in the user's cache folder."""
    return ListingFile(roots, entries_folder())


def entries_folder() -> Path:
    """The folder of entries in the user's cache folder."""
    from ...user_cache import own_cache

    return own_cache() / "declarations"


def _contents(roots: Sequence[Path]) -> dict[Path, bytes] | None:
    """The files below `roots`; None if one of these is a file, whose neighbours count too, or if there are too many."""
    found: dict[Path, bytes] = {}
    size = 0
    for root in roots:
        if not root.is_dir():
            return None
        for file in _files_below(root):
            try:
                size += file.stat().st_size
                if len(found) >= MOST_FILES or size > MOST_BYTES:
                    return None
                found[file] = file.read_bytes()
            except OSError:
                return None
    return found


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _digest_of(contents: Mapping[Path, bytes]) -> str:
    digest = hashlib.sha256()
    for file, content in contents.items():
        digest.update(f"{file}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _surroundings(contents: Mapping[Path, bytes]) -> list[Any]:
    """What a load depends on besides files: fusebench, Python, what can be imported, environment variables and the GPU's driver."""
    text = b"\n".join(content for file, content in contents.items() if file.suffix == ".py")
    named = [
        (name, value)
        for name, value in sorted(os.environ.items())
        if name not in _IRRELEVANT
        and (name.startswith(_VARIABLES) or any(f"{quote}{name}{quote}".encode("utf-8", "surrogateescape") in text for quote in "\"'"))
    ]
    driver = [_text_of("/proc/driver/nvidia/version"), *sorted(name for name in _names_in("/dev") if name.startswith("nvidia"))]
    return [__version__, sys.version, [(place, _importable(place)) for place in sys.path], named, driver]


def _importable(place: str) -> list[str]:
    """What the folder `place` of `sys.path` offers by name: modules, packages, and installed distributions with their versions."""
    endings = (".py", ".so", ".pth", ".dist-info", ".egg-info", ".egg-link")
    names = (name for name in _names_in(place or ".") if not name.startswith((".", "__")))
    return sorted(name for name in names if "." not in name or name.endswith(endings))


def _names_in(folder: str) -> list[str]:
    try:
        return [one.name for one in Path(folder).iterdir()]
    except OSError:
        return []


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


def _outside(roots: Iterable[Path], modules: Iterable[str]) -> set[str]:
    """The source files `modules` that lie neither below `roots` nor among the installed packages: those that a person edits in place."""
    paths = sysconfig.get_paths()
    installed = tuple(f"{os.path.realpath(paths[name])}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    below = tuple(f"{root}{os.sep}" for root in roots)
    # Of each folder once: torch brings two thousand modules, and every part of every path would be looked up.
    folder_of = functools.cache(os.path.realpath)

    def real(file: str) -> str:
        folder, name = os.path.split(file)
        place = os.path.join(folder_of(folder), name)  # noqa: PTH118  a Path for each costs as much as the look-up
        return os.path.realpath(place) if os.path.islink(place) else place  # noqa: PTH114

    return {file for file in modules if not file.startswith(below) and not real(file).startswith(installed)}


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
