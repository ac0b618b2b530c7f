"""One `fusebench ncu` on disk: a folder `<created>_<id>_ncu` holding `ncu.json`, the `.ncu-rep` files and `report.md`, written once."""

from __future__ import annotations

from pathlib import Path

from ..counters.records import COUNTERS_VERSION, CounterRun
from .finding import COUNTERS_FILE
from .kept_folder import keep
from .record_files import read_command_record
from .run_folder import stamped_name
from .seal import SealState, check_seal


def keep_counters(parent: Path, run: CounterRun, reports: Path) -> Path:
    """Write the run as it stands, or replace what was written of it before; a kill at any moment leaves a readable folder.

    Args:
        parent: folder under which the run's is made; it is made when absent.
        reports: folder that holds the `.ncu-rep` files that the captures name; they are copied.

    Raises:
        RecordNotWrittenError: the disk is full, or the folder takes no file.
        RunRecordError: a report file is missing, or the folder cannot be moved into place.
    """
    record = parent / f"{stamped_name(run.id, run.created)}_ncu" / COUNTERS_FILE
    named = {capture.report: reports / capture.report for capture in run.captures if capture.report}
    return keep(record, run, what="run", resume=run.command, replaced={}, copied=named)


def seal_of_counters(folder: Path) -> SealState:
    """What the seal of the record in `folder` says, which covers the reports that it names."""
    return check_seal(folder / COUNTERS_FILE, None)


def read_counters(folder: Path) -> CounterRun:
    """The record in `folder` (or in an `ncu.json` given by its path).

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = folder if folder.name == COUNTERS_FILE and not folder.is_dir() else folder / COUNTERS_FILE
    return read_command_record(file, CounterRun, version="version", newest=COUNTERS_VERSION, command="ncu")
