"""A catalogue as tables that DuckDB queries, on this machine's disk.

Of a store, the files are downloaded once and kept in the user's cache: they never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ..files import write_file
from .files import CatalogueError, Files, Folder, Part, damaged, parts

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
"""Memory of DuckDB; what a query needs beyond it goes to the disk."""
_MAGIC = b"PAR1"
_ATTEMPTS = 3
"""Files may be merged between the listing and the download; another listing then names the merged one."""


class Catalogue:
    """The rows of a catalogue, each run once."""

    def __init__(self, files: Files, *, devices: Collection[str] | None = None, cache: Path | None = None) -> None:
        """Find the files, and download those that are not here.

        Args:
            devices: slugs of device models; None for all.
            cache: folder for downloads; the user's cache unless given.

        Raises:
            CatalogueError: a file is cut off, garbled, or of a newer version.
            StoreError: the store failed.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            found = parts(files, devices)
            try:
                self.files = _here(files, found, cache)
                break
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS:
                    raise CatalogueError(f"{error}: files went away while they were read; try again") from error
        self.parts: Sequence[Part] = found
        self.where = files.where("")

    @contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with the view `results`: one row per kernel, case and run.

        Raises:
            CatalogueError: the catalogue is empty, or a file cannot be read although it is not cut off.
            UsageError: the body's SQL is wrong.
        """
        import duckdb

        if not self.parts:
            raise CatalogueError(
                f"{self.where}: the catalogue is empty; `fusebench catalogue rebuild` makes it of the runs in the same --results, and "
                "later runs join it"
            )
        try:
            with duckdb.connect() as connection:
                self._view(connection)
                yield connection
        except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
            raise UsageError(f"the query is refused: {error}") from error
        except duckdb.Error as error:
            raise CatalogueError(f"the catalogue cannot be read: {error}; make it again with `fusebench catalogue rebuild`") from error

    def _view(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the view `results`, of the files without the runs that another file holds, too."""
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute("SET enable_progress_bar = false")
        whole = [str(file) for file, part in zip(self.files, self.parts, strict=True) if not part.left_out]
        sources = [f"SELECT * FROM read_parquet({_listed(whole)}, hive_partitioning = false)"] if whole else []
        for file, part in zip(self.files, self.parts, strict=True):
            if part.left_out:
                ids = _listed([name.partition("_")[2] for name in part.left_out])
                sources.append(
                    f"SELECT * FROM read_parquet({_listed([str(file)])}, hive_partitioning = false) WHERE NOT list_contains({ids}, run)"
                )
        connection.execute(f"CREATE VIEW results AS {' UNION ALL '.join(sources)}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that `sql` selects from `results`.

        Raises:
            CatalogueError, UsageError: as `connect`.
        """
        with self.connect() as connection:
            found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
        return found

    def answer(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and rows of a person's query.

        Raises:
            UsageError: DuckDB refuses it.
            CatalogueError: as `connect`.
        """
        import duckdb

        with self.connect() as connection:
            try:
                found = connection.execute(sql)
                return [name for name, *_ in found.description or ()], found.fetchall()
            except duckdb.Error as error:
                raise UsageError(f"the query is refused: {error}") from error


def _here(files: Files, found: Sequence[Part], cache: Path | None) -> list[Path]:
    """The parts as files on this machine.

    Raises:
        FileNotFoundError: one went away since the listing.
        CatalogueError: one is cut off.
    """
    if isinstance(files, Folder):
        local = [files.root / part.path for part in found]
        for file, part in zip(local, found, strict=True):
            _require_whole(file, files.where(part.path))
        return local
    if cache is None:
        import platformdirs

        cache = platformdirs.user_cache_path("fusebench") / "catalogue"
    folder = cache / hashlib.sha256(files.where("").encode()).hexdigest()[:16]
    local = []
    for part in found:
        file = folder / part.path
        if not (file.is_file() and file.stat().st_size == part.size):
            content = files.read(part.path)
            if content is None:
                raise FileNotFoundError(files.where(part.path))
            write_file(file, content)
        try:
            _require_whole(file, files.where(part.path))
        except CatalogueError:
            file.unlink(missing_ok=True)
            raise
        local.append(file)
    return local


def _require_whole(file: Path, where: str) -> None:
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        end = stream.read()
    if len(end) < 8 or end[4:] != _MAGIC or int.from_bytes(end[:4], "little") > size - 12:
        raise damaged(where, size, "it has no end of a Parquet file")


def _listed(texts: Sequence[str]) -> str:
    """A list of strings in SQL."""
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"
