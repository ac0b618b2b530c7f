"""Calibrations on disk: one per device model, `results/calibration/<device>.json`, with every trial, so that later sessions can add more.

Trials, ground truths and components lie in a Parquet file beside it, which the JSON file names. Records of version 1 hold everything in the
JSON file; they are read too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import RunRecordError
from ..schema import CacheState, CalibrationNote, Environment, GroundTruth, InjectedTrial, SamplingPlan
from ..stats.sequential import Plan
from ..stats.variance import Components
from .calibration_note import CALIBRATION_VERSION, RESTORE, calibration_file, decoded
from .files import held_alone, write_file
from .seal import SealState, check_seal, digest, sealed_json
from .tables import decode_table, encode_table


class CaseComponents(msgspec.Struct, frozen=True, kw_only=True):
    """Components of the variance of one kernel's A/A comparison.  `time_us` is microseconds."""

    session: int
    case: str
    kernel: str
    time_us: float
    components: Components


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of `fusebench calibrate` on one device model."""

    version: int = CALIBRATION_VERSION
    note: CalibrationNote
    environment: Environment
    """Environment of the last session."""
    timer: str
    cache: CacheState
    looks: Plan
    sampling: SamplingPlan
    same_buffers: bool = False
    """Whether the arms of a pair shared buffers; in the first calibrations each arm had its own."""
    processes: int
    """Number of fresh processes that confirm a finding."""
    sessions: tuple[str, ...]
    """Time of each session, UTC, ISO 8601."""
    trials: tuple[InjectedTrial, ...]
    ground_truths: tuple[GroundTruth, ...] = msgspec.field(name="truths")
    components: tuple[CaseComponents, ...]
    warnings: tuple[str, ...] = ()


class CalibrationTables(msgspec.Struct, frozen=True, kw_only=True):
    """The long lists of a record: the one row of its Parquet file."""

    trials: tuple[InjectedTrial, ...]
    ground_truths: tuple[GroundTruth, ...] = msgspec.field(name="truths")
    components: tuple[CaseComponents, ...]


_TABLES = CalibrationTables.__struct_encode_fields__


def join_calibration(
    results: Path, device_name: str, join: Callable[[CalibrationRecord | None], CalibrationRecord]
) -> tuple[CalibrationRecord, Path]:
    """Replace the stored record by `join(record)` (`join(None)` without a record), and return the new record with its file.

    Several GPUs of one model may be calibrated at the same time, each by its own command.  A lock lets one of them join at a time.

    Raises:
        RunRecordError: there is a record, and it cannot be read; it stays as it is.
    """
    with held_alone(calibration_file(results, device_name)):
        record = join(load_calibration(results, device_name))
        return record, write_calibration(results, record)


def write_calibration(results: Path, record: CalibrationRecord) -> Path:
    """Replace the stored record atomically, and return the new JSON file.

    The name of the Parquet file of trials follows from its content. It is written first, and the old one is removed last, so a reader
    always finds the trials of a JSON file.
    """
    file = calibration_file(results, record.environment.device_name)
    rows = [CalibrationTables(**{name: getattr(record, name) for name in CalibrationTables.__struct_fields__})]
    content = encode_table(rows, CalibrationTables, {"fusebench.calibration_version": str(CALIBRATION_VERSION)})
    tables = file.with_name(f"{file.stem}.{hashlib.sha256(content).hexdigest()[:12]}.parquet")
    write_file(tables, content)
    head = {name: entry for name, entry in msgspec.to_builtins(record).items() if name not in _TABLES}
    write_file(file, sealed_json({**head, "version": CALIBRATION_VERSION, "tables": tables.name}, {tables.name: digest(content)}))
    for other in file.parent.glob(f"{file.stem}.*.parquet"):
        if other != tables:
            other.unlink(missing_ok=True)
    return file


def load_calibration(results: Path, device_name: str) -> CalibrationRecord | None:
    """The whole record, or None if the device model was not calibrated.

    Raises:
        RunRecordError: there is one, and it cannot be read.
    """
    return read_calibration(calibration_file(results, device_name))


def read_calibration(file: Path, *, instead: str = RESTORE) -> CalibrationRecord | None:
    """The record in the JSON file `file`, with the trials that lie beside it; None if there is no file.

    `instead` says what to do about a file that is garbled.  The record of an older version is read as one of this version.

    Raises:
        RunRecordError: a file of the record is missing, cannot be read, is garbled, or is of a newer version.
    """
    head = decoded(file, dict[str, Any], instead=instead)
    if head is None:
        return None
    if head["version"] > 1:
        head = {**head, **_read_tables(file, head.get("tables"), instead)}
    try:
        return msgspec.convert({**head, "version": CALIBRATION_VERSION}, CalibrationRecord, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise RunRecordError(f"{file}: not a calibration that fusebench wrote: {error}; {instead}") from error


def seal_of_calibration(file: Path) -> SealState:
    """What the seal of the record in the JSON file `file` says, which covers the trials beside it."""
    return check_seal(file, None) if file.exists() else SealState(sealed=False)


def _read_tables(file: Path, name: Any, instead: str) -> dict[str, Any]:
    if not isinstance(name, str) or Path(name).name != name or not name:
        raise RunRecordError(f"{file}: `tables` is {name!r}; expected the name of the Parquet file beside it; {instead}")
    where = file.with_name(name)
    try:
        content = where.read_bytes()
    except OSError as error:
        raise RunRecordError(f"{where}: cannot be read: {error.strerror or error}; {file.name} names it; {instead}") from error
    rows, _ = decode_table(content, CalibrationTables, where, remedy=instead)
    if len(rows) != 1:
        raise RunRecordError(f"{where}: holds {len(rows)} calibrations; expected one; {instead}")
    return rows[0]
