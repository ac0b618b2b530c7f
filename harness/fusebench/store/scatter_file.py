"""The scatter between stored runs on disk: one JSON file per device model, `results/calibration/<device>.scatter.json`."""

from __future__ import annotations

from pathlib import Path

from ..naming import device_slug
from ..schema import RunScatter
from .files import write_file
from .record_files import encode_record, read_record

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
    return read_record(scatter_file(results, device_name), RunScatter, newest=SCATTER_VERSION, what="scatter", remedy=_REMEDY)
