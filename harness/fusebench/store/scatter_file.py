"""The scatter between stored runs on disk: one JSON file per device model, `results/calibration/<device>.scatter.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import RunRecordError
from ..naming import device_slug
from ..schema import RunScatter
from .files import write_file
from .record_files import decode_record, encode_record

SCATTER_VERSION = 1
"""Version of the file's format, raised whenever a reader of the previous version could misread the new one."""
_REMEDY = "restore it, or write it anew with `fusebench history RUNS --scatter`"


def scatter_file(results: Path, device_name: str) -> Path:
    """Path of the scatter of a device model."""
    return results / "calibration" / f"{device_slug(device_name)}.scatter.json"


def write_scatter(results: Path, scatter: RunScatter) -> Path:
    """Replace the stored scatter of its device model, and return the file."""
    file = scatter_file(results, scatter.device_name)
    write_file(file, encode_record(scatter))
    return file


def load_scatter(results: Path, device_name: str) -> RunScatter | None:
    """The scatter of a device model; None if there is none.

    Raises:
        RunRecordError: there is a file, and it cannot be read, or is of a newer version.
    """
    file = scatter_file(results, device_name)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return decode_record(content, RunScatter, version="version", newest=SCATTER_VERSION, where=file)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunRecordError(f"{file}: not a scatter that fusebench wrote: {error}; {_REMEDY}") from error
