"""The part of a stored calibration that reports print. Reading it imports no statistics, because a gate must start quickly."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ..naming import device_slug
from ..schema import CalibrationNote, Run
from .record_files import read_record
from .seal import SealState, altered_words, check_seal, digests_in

CALIBRATION_VERSION = 2
"""Version of the calibration file's format, raised whenever a reader of the previous version could misread the new one.

Version 1 holds every trial in the JSON file; version 2 keeps the trials in a Parquet file beside it.
"""
RESTORE = "restore it, or delete it and run `fusebench calibrate` again"
"""The remedy for a stored calibration that is garbled."""

T = TypeVar("T")


class _Slim(msgspec.Struct):
    note: CalibrationNote


def calibration_file(results: Path, device_name: str) -> Path:
    """Path of the calibration of a device model."""
    return results / "calibration" / f"{device_slug(device_name)}.json"


def load_note(results: Path, device_name: str) -> CalibrationNote | None:
    """The note of the device model's calibration, or None if there is none.

    Raises:
        RunRecordError: there is one, and it cannot be read.
    """
    slim = decoded(calibration_file(results, device_name), _Slim)
    return slim.note if slim is not None else None


def seal_of_note(results: Path, device_name: str) -> SealState:
    """What the seal of the calibration says about its JSON file, which holds the note; the trials beside it are not looked at."""
    file = calibration_file(results, device_name)
    if not file.exists():
        return SealState(sealed=False)
    return check_seal(file, None, left_out=digests_in(file))


def warnings_of_note(results: Path, device_name: str) -> list[str]:
    """The warning of a calibration that does not fit its seal; empty without one."""
    altered = seal_of_note(results, device_name).altered
    return [altered_words(f"the calibration of {device_name}", altered, calibration_file(results, device_name))] if altered else []


def with_calibration(run: Run, results: Path) -> Run:
    """`run` with its device's calibration; unchanged if it already holds one.

    Raises:
        RunRecordError: as `load_note`.
    """
    if run.calibration is not None:
        return run
    return msgspec.structs.replace(run, calibration=load_note(results, run.environment.device_name))


def decoded(file: Path, kind: type[T], *, instead: str = RESTORE) -> T | None:
    """The calibration file as `kind`, or None if there is no file.

    `instead` says what to do about a garbled file.

    Raises:
        RunRecordError: it cannot be read, is garbled, or is of a newer version.
    """
    return read_record(file, kind, newest=CALIBRATION_VERSION, what="calibration", remedy=instead)
