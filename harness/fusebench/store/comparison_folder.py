"""One comparison on disk: a folder `<created>_<id>_ab` holding `ab.json`, `samples.parquet` and `report.md`, written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import RunRecordError
from ..schema import Sample
from .comparison_record import COMPARISON_VERSION, Comparison
from .files import write_file
from .finding import COMPARISON_FILE
from .kept_folder import keep
from .record_files import read_command_record
from .run_folder import SAMPLES_FILE, decode_samples, encode_samples, stamped_name
from .seal import SealState, check_seal, file_as_sealed

REPORT_FILE = "report.md"


def folder_of(parent: Path, comparison: Comparison) -> Path:
    """The folder of the comparison under `parent`."""
    return parent / f"{stamped_name(comparison.id, comparison.created)}_ab"


def keep_comparison(parent: Path, comparison: Comparison, samples: Sequence[Sample]) -> Path:
    """Write the comparison as it stands, or replace what was written of it before; a kill at any moment leaves a readable folder.

    The folder is made under `parent`, which is made when absent.  `write_report` adds the report.

    Raises:
        RecordNotWrittenError: the disk is full, or the folder takes no file.
        RunRecordError: the folder cannot be moved into place.
    """
    record = folder_of(parent, comparison) / COMPARISON_FILE
    taken = {SAMPLES_FILE: encode_samples(comparison.id, samples)}
    return keep(record, comparison, what="comparison", resume=comparison.command, replaced=taken, copied={})


def seal_of_comparison(folder: Path) -> SealState:
    """What the seal of the record in `folder` says."""
    return check_seal(folder / COMPARISON_FILE, (SAMPLES_FILE,))


def read_comparison_samples(folder: Path) -> list[Sample]:
    """The raw samples of the record in `folder`.

    Raises:
        RunRecordError: the file is missing, truncated, garbled, or lacks a column.
    """
    file = file_as_sealed(folder / COMPARISON_FILE, SAMPLES_FILE)
    try:
        return decode_samples(file.read_bytes(), file)
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}") from error


def write_report(folder: Path, report: str) -> None:
    """Write the Markdown report into a comparison's folder: separately, so that a fault in the report does not lose the record."""
    write_file(folder / REPORT_FILE, report.encode())


def read_comparison(folder: Path) -> Comparison:
    """The record in `folder`.

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = folder / COMPARISON_FILE
    return read_command_record(file, Comparison, version="comparison_version", newest=COMPARISON_VERSION, command="ab")
