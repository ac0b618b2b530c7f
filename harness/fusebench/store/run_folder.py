"""One run on disk: a folder `<created>_<id>` holding `run.json` and `samples.parquet`, written once and never changed.

Reports (`report.md`, `speedup.png`) may lie beside them: they are views, made again from the record at any time.  The format is
described in docs/schema.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import RunRecordError
from ..schema import SCHEMA_VERSION, Run, Sample
from .files import write_file
from .record_files import encode_record, new_folder

if TYPE_CHECKING:
    import pandas

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.parquet"


_LATER_COLUMNS = {"process": 0}
"""Columns that older files lack, and what they mean by that."""


class _Probe(msgspec.Struct):
    schema_version: int


def write_run(parent: Path, run: Run, samples: Sequence[Sample]) -> Path:
    """Write the run as a new folder under `parent`, which is made when absent, and return it.

    Either the whole folder appears or nothing does.

    Raises:
        RunRecordError: the folder exists already, or `run.created` is not an ISO 8601 time.
    """
    folder = parent / folder_name(run)
    with new_folder(folder, "run") as making:
        write_file(making / RUN_FILE, encode_record(run))
        write_samples(making / SAMPLES_FILE, run.id, samples)
    return folder


def read_run(folder: Path) -> Run:
    """The record in `folder` (or in a `run.json` given by its path).

    Raises:
        RunRecordError: no such folder, not a run folder, a truncated or garbled record, or one of a newer schema.
    """
    file = folder if folder.name == RUN_FILE and not folder.is_dir() else folder / RUN_FILE
    return decode_run(_read_bytes(file), str(file))


def read_samples(folder: Path) -> pandas.DataFrame:
    """The raw samples as a frame with the columns of `Sample`, one row per timed call, times in nanoseconds.

    Raises:
        RunRecordError: the file is missing, truncated, garbled, or lacks a column.
    """
    import pyarrow
    import pyarrow.parquet

    file = folder / SAMPLES_FILE
    content = _read_bytes(file)
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise RunRecordError(f"{file}: truncated or garbled: {error}; the run's samples are lost, so run it again") from error
    for name, value in _LATER_COLUMNS.items():
        if name not in table.column_names:
            table = table.append_column(name, pyarrow.array([value] * len(table), pyarrow.int32()))
    missing = [name for name in Sample.__struct_fields__ if name not in table.column_names]
    if missing:
        raise RunRecordError(f"{file}: lacks the columns {', '.join(missing)}; found {', '.join(table.column_names)}")
    frame: pandas.DataFrame = table.to_pandas()
    return frame


def sample_values(folder: Path) -> list[Sample]:
    """The raw samples as values.  Raises RunRecordError as `read_samples`."""
    frame = read_samples(folder)
    columns = [frame[name].tolist() for name in Sample.__struct_fields__]
    return [Sample(**dict(zip(Sample.__struct_fields__, row, strict=True))) for row in zip(*columns, strict=True)]


def folder_name(run: Run) -> str:
    """`20260727T072547Z_<id>`: sorts by time, and holds no character that a file system minds."""
    return stamped_name(run.id, run.created)


def stamped_name(run_id: str, created: str) -> str:
    """The same from a record's id and its time, an ISO 8601 string.

    Raises:
        RunRecordError: it is not one.
    """
    try:
        time = datetime.fromisoformat(created)
    except ValueError as error:
        raise RunRecordError(f"run {run_id}: created={created!r} is not an ISO 8601 time") from error
    stamp = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    return f"{stamp:%Y%m%dT%H%M%SZ}_{run_id}"


def decode_run(content: bytes, where: str) -> Run:
    """The inverse of `record_files.encode_record`; `where` names the source in messages.

    Raises:
        RunRecordError: truncated or garbled JSON, a newer schema, or a record that does not fit this one.
    """
    try:
        found = msgspec.json.decode(content, type=_Probe).schema_version
    except msgspec.ValidationError as error:
        raise RunRecordError(f"{where}: not a run record: {error}; expected a {RUN_FILE} that fusebench wrote") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunRecordError(
            f"{where}: truncated or garbled ({len(content)} bytes): {error}; the record is lost, so run it again"
        ) from error
    if found > SCHEMA_VERSION:
        raise RunRecordError(
            f"{where}: schema version {found} is newer than this fusebench reads (up to {SCHEMA_VERSION}); upgrade fusebench to read it"
        )
    if found < 1:
        raise RunRecordError(f"{where}: schema version {found} does not exist; the first is 1")
    try:
        # Not strict, for one reason: a string is accepted where a number belongs, which brings "inf" and "nan" back.
        return msgspec.json.decode(content, type=Run, strict=False)
    except msgspec.ValidationError as error:
        raise RunRecordError(f"{where}: schema version {found}, but the record does not fit it: {error}") from error


def _read_bytes(file: Path) -> bytes:
    folder = file.parent
    if not folder.exists():
        raise RunRecordError(f"{folder}: no such folder; `fusebench run` prints the folder of a run when it ends")
    if not folder.is_dir():
        raise RunRecordError(f"{folder}: a file, not a run folder; expected a folder that holds {RUN_FILE}")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        if file.name == RUN_FILE:
            raise RunRecordError(f"{folder}: not a run folder: it holds no {RUN_FILE}") from None
        raise RunRecordError(f"{file}: missing; the run folder is incomplete") from None
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}") from error


def write_samples(file: Path, run_id: str, samples: Sequence[Sample]) -> None:
    """Write the raw samples of the run `run_id` as a Parquet file, one row per timed call."""
    import pyarrow
    import pyarrow.parquet

    types = {"case": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), "span_ns": pyarrow.int64(), "busy_ns": pyarrow.int64()}
    types["arm"] = types["case"]
    schema = pyarrow.schema(
        [(name, types.get(name, pyarrow.int32())) for name in Sample.__struct_fields__],
        metadata={"fusebench.schema_version": str(SCHEMA_VERSION), "fusebench.run": run_id},
    )
    columns = {name: [getattr(sample, name) for sample in samples] for name in Sample.__struct_fields__}
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), file, compression="zstd")
