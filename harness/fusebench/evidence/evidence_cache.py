"""Records on disk under keys that contain all their inputs: an entry stays valid, or is never read again."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import FusebenchError
from ..user_cache import VARIABLE, own_cache
from .records import CapturedCase, Code

RecordT = TypeVar("RecordT")


class CacheError(FusebenchError):
    """An entry of the cache that cannot be read."""


def cache_folder() -> Path:
    """The folder of the cache."""
    return own_cache() / "static"


class EvidenceCache:
    """A folder of small files.  Without a folder it finds nothing and keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def case(self, key: str) -> CapturedCase | None:
        """The case under `key`, or None.

        Raises:
            CacheError: the entry is not a record.
        """
        return self._read("launches", key, CapturedCase)

    def code(self, key: str) -> Code | None:
        """The code under `key`, or None; raises as `case`."""
        return self._read("code", key, Code)

    def keep_case(self, key: str, case: CapturedCase) -> None:
        self._write("launches", key, case)

    def keep_code(self, key: str, code: Code) -> None:
        self._write("code", key, code)

    def _file(self, folder: Path, kind: str, key: str) -> Path:
        return folder / kind / key[:2] / f"{key}.json"

    def _read(self, kind: str, key: str, record: type[RecordT]) -> RecordT | None:
        if self.folder is None:
            return None
        file = self._file(self.folder, kind, key)
        try:
            return msgspec.json.decode(file.read_bytes(), type=record)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheError(f"{file}: cannot be read: {error.strerror or error}; correct its permissions, or pass --no-cache") from error
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
            raise CacheError(
                f"{file}: a corrupted cache entry ({error}); nothing was changed: delete the file, or pass --no-cache"
            ) from error

    def _write(self, kind: str, key: str, record: CapturedCase | Code) -> None:
        if self.folder is None:
            return
        file = self._file(self.folder, kind, key)
        making = file.with_name(f".{key}.{uuid.uuid4().hex[:8]}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            making.write_bytes(msgspec.json.encode(record))
            making.replace(file)  # atomic: a reader sees all of it or nothing
        except OSError as error:
            making.unlink(missing_ok=True)
            raise CacheError(
                f"{file}: cannot be written: {error.strerror or error}; set {VARIABLE} to another folder, or pass --no-cache"
            ) from error
