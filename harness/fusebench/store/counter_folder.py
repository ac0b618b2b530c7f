"""One `fusebench ncu` on disk: a folder `<created>_<id>_ncu` holding `ncu.json`, the `.ncu-rep` files and `report.md`, written once."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from ..counters.records import COUNTERS_VERSION, CounterRun
from ..errors import RunRecordError
from .files import not_written, write_file
from .record_files import decode_record, encode_record, new_folder
from .run_folder import stamped_name

COUNTERS_FILE = "ncu.json"
REPORT_FILE = "report.md"


def write_counters(parent: Path, run: CounterRun, reports: Path, report: str | None = None) -> Path:
    """Write the run as a new folder under `parent`, which is made when absent, and return it.

    Args:
        reports: folder that holds the `.ncu-rep` files that the captures name; they are copied.
        report: the text of `report.md`, a view that may also be written later.

    Raises:
        RunRecordError: the folder exists already, a report file is missing, or the folder cannot be moved into place.
    """
    folder = _folder_of(parent, run)
    with new_folder(folder, "run") as making:
        write_file(making / COUNTERS_FILE, encode_record(run))
        _copy_reports(run, reports, making)
        if report is not None:
            write_file(making / REPORT_FILE, report.encode())
    return folder


def keep_counters(parent: Path, run: CounterRun, reports: Path) -> Path:
    """Write the run as it stands, or replace what was written of it before; a kill at any moment leaves a readable folder.

    Raises:
        RecordNotWrittenError: the disk is full, or the folder takes no file.
        RunRecordError: as `write_counters`.
    """
    folder = _folder_of(parent, run)
    try:
        if not folder.exists():
            return write_counters(parent, run, reports)
        _copy_reports(run, reports, folder)
        write_file(folder / COUNTERS_FILE, encode_record(run))
    except OSError as error:
        raise not_written(folder, error) from error
    return folder


def _folder_of(parent: Path, run: CounterRun) -> Path:
    return parent / f"{stamped_name(run.id, run.created)}_ncu"


def _copy_reports(run: CounterRun, reports: Path, folder: Path) -> None:
    """Copy the reports that the captures name, unless they are there already."""
    for name in dict.fromkeys(capture.report for capture in run.captures if capture.report):
        try:
            if not (folder / name).exists():
                shutil.copyfile(reports / name, folder / name)
        except OSError as error:
            raise RunRecordError(f"{reports / name}: cannot be copied into the run's folder: {error.strerror or error}") from error


def read_counters(folder: Path) -> CounterRun:
    """The record in `folder` (or in an `ncu.json` given by its path).

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = folder if folder.name == COUNTERS_FILE and not folder.is_dir() else folder / COUNTERS_FILE
    try:
        return decode_record(file.read_bytes(), CounterRun, version="version", newest=COUNTERS_VERSION, where=file)
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}; expected the folder of a `fusebench ncu`") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunRecordError(f"{file}: not a record of `fusebench ncu`: {error}; run it again") from error
