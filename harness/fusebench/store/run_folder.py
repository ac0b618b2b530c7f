"""One run on disk: a folder `<created>_<id>`, written once and never changed.

`run.json` holds environment, plan, suites, warnings and the seal. The long lists are Parquet files beside it: `cases`, `kernels`,
`results`, the `warm_up` of every case, and `samples`, one row per timed call. Reports (`report.md`, `speedup.png`) may lie beside them;
they are views that can be made again from the record at any time. docs/schema.md describes the format.

Records of schema 1 and 2 are read too: their `run.json` holds everything except the samples. `convert_run` writes them in this form.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import AlteredRecordError, RunRecordError
from ..schema import SCHEMA_VERSION, CaseSummary, KernelInfo, Result, Run, Sample
from .files import write_file
from .record_files import new_folder, read_version
from .seal import SealState, check_seal, digest, sealed_json
from .tables import MOST_BYTES, decode_table, encode_table, read_parquet

if TYPE_CHECKING:
    import pandas
    import pyarrow

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.parquet"
LAST_VERSION_IN_JSON = 2
"""The last schema version whose `run.json` holds cases, kernels and results itself."""
WARM_UP = "warm_up"
"""The entry of `Environment.state` that has a table of its own: it grows with the number of cases."""
_REMEDY = "restore the file from a copy of the run, or run again"
_LATER_COLUMNS = {"process": 0}
"""Columns that older files lack, and the value that every row of such a file has."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """Warm-up of one case to steady clocks: one entry of `Environment.state["warm_up"]`."""

    place: str
    """The case's key, followed by the process unless it is the first."""
    found: dict[str, Any]


TABLES: dict[str, type] = {"cases": CaseSummary, "kernels": KernelInfo, "results": Result, WARM_UP: WarmUp}
"""The tables of a record, with the type of their rows; each is a file `<name>.parquet`."""
TABLE_FILES = tuple(f"{name}.parquet" for name in TABLES)


def write_run(parent: Path, run: Run, samples: Sequence[Sample]) -> Path:
    """Write the run as a new folder under `parent`, which is made when absent, and return it.

    Either the whole folder appears or nothing does.  It is written in the newest schema, whichever one `run` was read from.

    Raises:
        RunRecordError: the folder exists already, or `run.created` is not an ISO 8601 time.
    """
    folder = parent / folder_name(run)
    with new_folder(folder, "run") as making:
        write_samples(making / SAMPLES_FILE, run.id, samples)
        write_record(making, run)
    return folder


def convert_run(folder: Path, parent: Path) -> Path:
    """Write the record in `folder`, of any schema, in the newest one as a new folder under `parent`, and return it.

    Its samples are copied as they are, where it has any.

    Raises:
        RunRecordError: the record cannot be read or was altered, or the new folder exists already.
    """
    run = read_run(folder)
    if altered := seal_of(folder).altered:
        raise AlteredRecordError(f"{folder}: run {run.id} was altered after it was written: {altered}; {_REMEDY}")
    target = parent / folder_name(run)
    with new_folder(target, "run") as making:
        samples = record_file(folder).with_name(SAMPLES_FILE)
        if samples.exists():
            shutil.copyfile(samples, making / SAMPLES_FILE)
        write_record(making, run)
    return target


def seal_of(folder: Path, *, samples: bool = True) -> SealState:
    """What the seal of the record in `folder` says; without `samples` these are not looked at."""
    return check_seal(record_file(folder), (*TABLE_FILES, SAMPLES_FILE), left_out=() if samples else (SAMPLES_FILE,))


def write_record(folder: Path, run: Run) -> None:
    """Write `run.json` and the tables of `run` into `folder`, which is not yet visible to readers. The seal covers its samples, too."""
    run = msgspec.structs.replace(run, schema_version=SCHEMA_VERSION)
    lists: dict[str, Sequence[msgspec.Struct]] = {"cases": run.cases, "kernels": run.kernels, "results": run.results}
    head = msgspec.to_builtins(run)
    for name in lists:
        del head[name]
    warm_up = _warm_up(run)
    if warm_up is not None:
        lists[WARM_UP] = warm_up
        del head["environment"]["state"][WARM_UP]
    head["rows"] = {name: len(rows) for name, rows in lists.items()}
    head["statuses"] = Counter(str(result.status) for result in run.results)
    head["verdicts"] = Counter(str(result.verdict.kind) for result in run.results if result.verdict is not None)
    metadata = {"fusebench.schema_version": str(SCHEMA_VERSION), "fusebench.run": run.id}
    files = {f"{name}.parquet": encode_table(rows, TABLES[name], metadata) for name, rows in lists.items()}
    for name, content in files.items():
        write_file(folder / name, content)
    if (folder / SAMPLES_FILE).exists():
        files[SAMPLES_FILE] = (folder / SAMPLES_FILE).read_bytes()
    write_file(folder / RUN_FILE, sealed_json(head, {name: digest(content) for name, content in files.items()}))


def read_run(folder: Path) -> Run:
    """The record in `folder` (or in a `run.json` given by its path).

    Raises:
        RunRecordError: no such folder, not a run folder, a missing, truncated or garbled file, a table that is not of this record, or a
            record of a newer schema.
    """
    file = record_file(folder)
    content = _read_bytes(file)
    version = _version(content, file)
    try:
        head = msgspec.json.decode(content)
        if version > LAST_VERSION_IN_JSON:
            head = _with_tables(head, file)
        # Not strict, so that the strings "inf" and "nan" become numbers again.
        return msgspec.convert(head, Run, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise RunRecordError(f"{file}: schema version {version}, but the record does not fit it: {error}; {_REMEDY}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _garbled(file, content, error) from error


def read_samples(folder: Path) -> pandas.DataFrame:
    """The raw samples as a frame with the columns of `Sample`, one row per timed call, times in nanoseconds.

    Raises:
        RunRecordError: the file is missing, truncated, garbled, or lacks a column.
    """
    file = folder / SAMPLES_FILE
    return _frame(_read_bytes(file), file)


def _frame(content: bytes, file: Path) -> pandas.DataFrame:
    import pyarrow

    try:
        frame: pandas.DataFrame = _sample_table(read_parquet(content), file).to_pandas(use_threads=False)
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise RunRecordError(f"{file}: truncated or garbled: {error}; the run's samples are lost, so run it again") from error
    return frame


def _sample_table(table: pyarrow.Table, file: Path) -> pyarrow.Table:
    """`table` with the columns that older files lack."""
    import pyarrow

    for name, value in _LATER_COLUMNS.items():
        if name not in table.column_names:
            table = table.append_column(name, pyarrow.array([value] * len(table), pyarrow.int32()))
    missing = [name for name in Sample.__struct_fields__ if name not in table.column_names]
    if missing:
        raise RunRecordError(f"{file}: lacks the columns {', '.join(missing)}; found {', '.join(table.column_names)}")
    return table


def sample_values(folder: Path) -> list[Sample]:
    """The raw samples as values.

    Raises:
        RunRecordError: as `read_samples`.
    """
    return _values(read_samples(folder))


def _values(frame: pandas.DataFrame) -> list[Sample]:
    columns = [frame[name].tolist() for name in Sample.__struct_fields__]
    return [Sample(**dict(zip(Sample.__struct_fields__, row, strict=True))) for row in zip(*columns, strict=True)]


def write_samples(file: Path, run_id: str, samples: Sequence[Sample]) -> None:
    """Write the raw samples of the run `run_id` as a Parquet file, one row per timed call."""
    write_file(file, encode_samples(run_id, samples))


def decode_samples(content: bytes, where: Path) -> list[Sample]:
    """The inverse of `encode_samples`; `where` names the file, for messages.

    Raises:
        RunRecordError: as `read_samples`.
    """
    return _values(_frame(content, where))


def encode_samples(run_id: str, samples: Sequence[Sample]) -> bytes:
    """The raw samples of the run `run_id` as the content of a Parquet file, one row per timed call.

    Rows are sorted by case (in the order of measurement), arm, process, replicate and round: a nightly is 12 % smaller that way.
    """
    import pyarrow
    import pyarrow.parquet

    cases = {name: place for place, name in enumerate(dict.fromkeys(sample.case for sample in samples))}
    samples = sorted(samples, key=lambda one: (cases[one.case], one.arm, one.process, one.replicate, one.round))

    types = {"case": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), "span_ns": pyarrow.int64(), "busy_ns": pyarrow.int64()}
    types["arm"] = types["case"]
    schema = pyarrow.schema(
        [(name, types.get(name, pyarrow.int32())) for name in Sample.__struct_fields__],
        metadata={"fusebench.schema_version": str(SCHEMA_VERSION), "fusebench.run": run_id},
    )
    columns = {name: [getattr(sample, name) for sample in samples] for name in Sample.__struct_fields__}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def record_file(folder: Path) -> Path:
    """The `run.json` of a run that is named by its folder, or by that file itself."""
    return folder if folder.name == RUN_FILE and not folder.is_dir() else folder / RUN_FILE


def folder_name(run: Run) -> str:
    """`20260727T072547Z_<id>`: sorts by time, and every file system accepts its characters."""
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


def _read_bytes(file: Path) -> bytes:
    """The content of a file of a run folder.

    Raises:
        RunRecordError: the folder or the file is missing, or cannot be read.
    """
    folder = file.parent
    if not folder.exists():
        raise RunRecordError(f"{folder}: no such folder; `fusebench run` prints the folder of a run when it ends")
    if not folder.is_dir():
        raise RunRecordError(f"{folder}: a file, not a run folder; expected a folder that holds {RUN_FILE}")
    try:
        if (size := file.stat().st_size) > MOST_BYTES:
            raise RunRecordError(f"{file}: {size / 1e6:.0f} MB; no record has more than {MOST_BYTES / 1e6:.0f} MB; {_REMEDY}")
        return file.read_bytes()
    except FileNotFoundError:
        if file.name == RUN_FILE:
            raise RunRecordError(f"{folder}: not a run folder: it holds no {RUN_FILE}") from None
        raise RunRecordError(f"{file}: missing; the run folder is incomplete: {_REMEDY}") from None
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}") from error


def _version(content: bytes, file: Path) -> int:
    try:
        found = read_version(content, "schema_version")
    except (msgspec.ValidationError, OverflowError) as error:
        raise RunRecordError(f"{file}: not a run record: {error}; expected a {RUN_FILE} that fusebench wrote") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _garbled(file, content, error) from error
    if found > SCHEMA_VERSION:
        raise RunRecordError(
            f"{file}: schema version {found} is newer than this fusebench reads (up to {SCHEMA_VERSION}); upgrade fusebench to read it, or "
            "write it in an older version with the `fusebench report RUN --format record --out DIR` of that version"
        )
    if found < 1:
        raise RunRecordError(f"{file}: schema version {found} does not exist; the first is 1")
    return found


def _garbled(file: Path, content: bytes, error: Exception) -> RunRecordError:
    return RunRecordError(f"{file}: truncated or garbled ({len(content)} bytes): {error}; {_REMEDY}")


def _with_tables(head: dict[str, Any], file: Path) -> dict[str, Any]:
    """The content of a `run.json` with the rows of its tables where `Run` has them."""
    expected = head.pop("rows", None)
    if not isinstance(expected, dict) or not {"cases", "kernels", "results"} <= expected.keys():
        raise RunRecordError(f"{file}: lacks `rows`, the number of rows of each table; found {expected!r}; {_REMEDY}")
    found = {name: _table(name, expected[name], head.get("id"), file) for name in TABLES if name in expected}
    warm_up = found.pop(WARM_UP, None)
    if warm_up is not None:
        try:
            head["environment"]["state"][WARM_UP] = {row["place"]: row["found"] for row in warm_up}
        except (KeyError, TypeError) as error:
            raise RunRecordError(f"{file}: has no environment.state that {WARM_UP}.parquet belongs to ({error!r}); {_REMEDY}") from error
    return {**head, **found}


def _table(name: str, expected: Any, run_id: Any, file: Path) -> list[dict[str, Any]]:
    where = file.with_name(f"{name}.parquet")
    rows, metadata = decode_table(_read_bytes(where), TABLES[name], where, remedy=_REMEDY)
    if metadata.get("fusebench.run") != run_id:
        raise RunRecordError(f"{where}: belongs to run {metadata.get('fusebench.run')!r}, but {RUN_FILE} is of run {run_id!r}; {_REMEDY}")
    if len(rows) != expected:
        raise RunRecordError(f"{where}: holds {len(rows)} rows, but {RUN_FILE} says {expected!r}; {_REMEDY}")
    return rows


def _warm_up(run: Run) -> list[WarmUp] | None:
    """The rows of the warm-up's table; None if the run has none, or holds it in another form than a table."""
    found = run.environment.state.get(WARM_UP)
    if not isinstance(found, dict) or not all(isinstance(place, str) and isinstance(one, dict) for place, one in found.items()):
        return None
    return [WarmUp(place=place, found=one) for place, one in found.items()]
