"""One comparison on disk: a folder `<created>_<id>_ab` holding `ab.json`, `samples.parquet` and `report.md`, written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import RunRecordError
from ..schema import Sample
from .comparison_record import COMPARISON_VERSION, Comparison
from .files import not_written, write_file
from .finding import COMPARISON_FILE
from .record_files import decode_record, encode_record, new_folder
from .run_folder import SAMPLES_FILE, stamped_name, write_samples

REPORT_FILE = "report.md"


def write_comparison(parent: Path, comparison: Comparison, samples: Sequence[Sample]) -> Path:
    """Write the comparison as a new folder under `parent`, which is made when absent, and return it.  `write_report` adds its report.

    Raises:
        RunRecordError: the folder exists already, or cannot be moved into place.
    """
    folder = folder_of(parent, comparison)
    with new_folder(folder, "comparison") as making:
        write_file(making / COMPARISON_FILE, encode_record(comparison))
        write_samples(making / SAMPLES_FILE, comparison.id, samples)
    return folder


def folder_of(parent: Path, comparison: Comparison) -> Path:
    """The folder of the comparison under `parent`."""
    return parent / f"{stamped_name(comparison.id, comparison.created)}_ab"


def keep_comparison(parent: Path, comparison: Comparison, samples: Sequence[Sample]) -> Path:
    """Write the comparison as it stands, or replace what was written of it before; a kill at any moment leaves a readable folder.

    Raises:
        RecordNotWrittenError: the disk is full, or the folder takes no file.
        RunRecordError: as `write_comparison`.
    """
    folder = folder_of(parent, comparison)
    try:
        if not folder.exists():
            return write_comparison(parent, comparison, samples)
        write_samples(folder / SAMPLES_FILE, comparison.id, samples)  # first: the record may name fewer samples than there are
        write_file(folder / COMPARISON_FILE, encode_record(comparison))
    except OSError as error:
        raise not_written(folder, error) from error
    return folder


def write_report(folder: Path, report: str) -> None:
    """Write the Markdown report into a comparison's folder: separately, so that a fault in the report does not lose the record."""
    write_file(folder / REPORT_FILE, report.encode())


def read_comparison(folder: Path) -> Comparison:
    """The record in `folder`.

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = folder / COMPARISON_FILE
    try:
        return decode_record(file.read_bytes(), Comparison, version="comparison_version", newest=COMPARISON_VERSION, where=file)
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}; expected the folder of a `fusebench ab`") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunRecordError(f"{file}: not a comparison that fusebench wrote: {error}; run `fusebench ab` again") from error
