"""One comparison on disk: a folder `<created>_<id>_ab` holding `ab.json`, `samples.parquet` and `report.md`, written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import RunRecordError
from ..schema import Sample
from .comparison_record import COMPARISON_VERSION, Comparison
from .files import folder_in_making, write_file
from .finding import COMPARISON_FILE
from .run_folder import SAMPLES_FILE, finite, stamped_name, write_samples

REPORT_FILE = "report.md"


class _Probe(msgspec.Struct):
    comparison_version: int


def write_comparison(parent: Path, comparison: Comparison, samples: Sequence[Sample], report: str) -> Path:
    """Write the comparison as a new folder under `parent`, which is made when absent, and return it.

    Raises:
        RunRecordError: the folder exists already, or cannot be moved into place.
    """
    folder = parent / f"{stamped_name(comparison.id, comparison.created)}_ab"
    if folder.exists():
        raise RunRecordError(f"{folder}: exists already; a comparison is never overwritten, so give the new one its own id")
    with folder_in_making(folder) as making:
        record = msgspec.json.format(msgspec.json.encode(finite(msgspec.to_builtins(comparison))), indent=1)
        write_file(making / COMPARISON_FILE, record + b"\n")
        write_samples(making / SAMPLES_FILE, comparison.id, samples)
        write_file(making / REPORT_FILE, report.encode())
        try:
            making.rename(folder)
        except OSError as error:
            raise RunRecordError(f"{folder}: the finished comparison could not be moved there: {error.strerror or error}") from error
    return folder


def read_comparison(folder: Path) -> Comparison:
    """The record in `folder`.

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = folder / COMPARISON_FILE
    try:
        content = file.read_bytes()
        found = msgspec.json.decode(content, type=_Probe).comparison_version
        if found > COMPARISON_VERSION:
            newest = f"version {found} is newer than this fusebench reads (up to {COMPARISON_VERSION})"
            raise RunRecordError(f"{file}: {newest}; upgrade fusebench to read it")
        # Not strict, so that "inf" and "nan" become numbers again.
        return msgspec.json.decode(content, type=Comparison, strict=False)
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}; expected the folder of a `fusebench ab`") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunRecordError(f"{file}: not a comparison that fusebench wrote: {error}; run `fusebench ab` again") from error
