"""Helpers for all kinds of records: JSON with infinities, a version that is read first, and a folder that appears whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import RunRecordError
from .files import folder_in_making, sync_folder

T = TypeVar("T")


@contextmanager
def new_folder(folder: Path, what: str) -> Iterator[Path]:
    """A folder to fill.  It becomes `folder` when the body ends without an error; otherwise nothing appears.

    Raises:
        RunRecordError: the folder exists already (a `what`, such as `run`, is never overwritten), or it cannot be moved into place.
    """
    if folder.exists():
        raise RunRecordError(f"{folder}: exists already; a {what} is never overwritten, so give the new one its own id")
    with folder_in_making(folder) as making:
        yield making
        try:
            sync_folder(making)
            making.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise RunRecordError(f"{folder}: the finished {what} could not be moved there: {error.strerror or error}") from error


def encode_record(record: msgspec.Struct) -> bytes:
    """`record` as indented JSON (see `encode_json`)."""
    return encode_json(msgspec.to_builtins(record))


def encode_json(value: Any) -> bytes:
    """`value`, of plain types, as indented JSON with the strings "inf", "-inf" and "nan" for the numbers that JSON does not have."""
    return msgspec.json.format(msgspec.json.encode(finite(value)), indent=1) + b"\n"


def decode_record(content: bytes, kind: type[T], *, version: str, newest: int, where: Path) -> T:
    """The inverse of `encode_record`, for a record whose field `version` is at most `newest`.

    Raises:
        RunRecordError: it is of a newer version; `where` names its file.
        msgspec.DecodeError, UnicodeDecodeError: it is truncated, garbled, nested too deeply, or does not fit `kind`, whose checks a number
            beyond any float may overflow.
    """
    found = read_version(content, version)
    if found > newest:
        raise RunRecordError(f"{where}: version {found} is newer than this fusebench reads (up to {newest}); upgrade fusebench to read it")
    # Not strict, so that "inf" and "nan" become numbers again.
    try:
        return msgspec.json.decode(content, type=kind, strict=False)
    except (OverflowError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def read_record(file: Path, kind: type[T], *, newest: int, what: str, remedy: str) -> T | None:
    """The record in `file`, whose field `version` is at most `newest`; None if there is no file.

    Args:
        what: the kind of record in words, for messages.
        remedy: what to do about a garbled file.

    Raises:
        RunRecordError: it cannot be read, is garbled, or is of a newer version.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return decode_record(content, kind, version="version", newest=newest, where=file)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunRecordError(f"{file}: not a {what} that fusebench wrote: {error}; {remedy}") from error


def read_command_record(file: Path, kind: type[T], *, version: str, newest: int, command: str) -> T:
    """The record in `file`, which `fusebench COMMAND` writes into a folder of its own, and whose field `version` is at most `newest`.

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    try:
        return decode_record(file.read_bytes(), kind, version=version, newest=newest, where=file)
    except OSError as error:
        raise RunRecordError(
            f"{file}: cannot be read: {error.strerror or error}; expected the folder of a `fusebench {command}`"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunRecordError(f"{file}: not a record that `fusebench {command}` wrote: {error}; run it again") from error


def read_version(content: bytes, key: str) -> int:
    """The version number that a JSON record holds under `key`, whatever else it holds.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: truncated, garbled or nested too deeply; ValidationError where it has no such number.
    """
    try:
        found = getattr(msgspec.json.decode(content, type=msgspec.defstruct("Probe", [(key, int)])), key)
    except RecursionError as error:
        raise msgspec.DecodeError("nested deeper than any record") from error
    return int(found)


def finite(value: Any) -> Any:
    """`value` with every infinity and NaN as a string, because JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value
