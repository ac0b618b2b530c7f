"""Calibrations on disk: one file per device model, `results/calibration/<device>.json`, with every trial, so that more can be added."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..device.lock import lock_folder
from ..schema import CacheState, CalibrationNote, Environment, SamplingPlan
from ..stats.injection import GroundTruth, PlantedTrial
from ..stats.sequential import Plan
from ..stats.variance import Components
from .calibration_note import CALIBRATION_VERSION, calibration_file, decoded
from .files import write_file
from .record_files import encode_record


class CaseComponents(msgspec.Struct, frozen=True, kw_only=True):
    """Where the scatter of one kernel's comparison with itself comes from."""

    session: int
    case: str
    kernel: str
    time_us: float
    components: Components


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that `fusebench calibrate` found on one device model."""

    version: int = CALIBRATION_VERSION
    note: CalibrationNote
    environment: Environment
    """Of the last session."""
    timer: str
    cache: CacheState
    looks: Plan
    sampling: SamplingPlan
    same_buffers: bool = False
    """Whether the arms of a pair lay in the same buffers; in the first calibrations each arm had its own."""
    processes: int
    """Fresh processes that confirm a finding."""
    sessions: tuple[str, ...]
    """When each session was made, UTC, ISO 8601."""
    trials: tuple[PlantedTrial, ...]
    truths: tuple[GroundTruth, ...]
    components: tuple[CaseComponents, ...]
    warnings: tuple[str, ...] = ()


def join_calibration(
    results: Path, device_name: str, join: Callable[[CalibrationRecord | None], CalibrationRecord]
) -> tuple[CalibrationRecord, Path]:
    """Replace the stored record by what `join` makes of it (None where there is none), and return it with its file.

    Several GPUs of one model may be calibrated at the same time, each by a command of its own: one at a time joins what it found.

    Raises:
        RunRecordError: there is a record, and it cannot be read; it stays as it is.
    """
    import filelock

    file = calibration_file(results, device_name).resolve()
    # Beside the devices' locks and not beside the file, which lies in a checkout.
    lock = lock_folder() / f"calibration-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):
        record = join(load_calibration(results, device_name))
        return record, write_calibration(results, record)


def write_calibration(results: Path, record: CalibrationRecord) -> Path:
    """Write the record in the place of the one there, at once, and return its file."""
    file = calibration_file(results, record.environment.device_name)
    write_file(file, encode_record(record))
    return file


def load_calibration(results: Path, device_name: str) -> CalibrationRecord | None:
    """The whole record, or None where the device model was not calibrated.

    Raises:
        RunRecordError: there is one, and it cannot be read.
    """
    return decoded(calibration_file(results, device_name), CalibrationRecord)
