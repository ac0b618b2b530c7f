"""The rows of a run in the catalogue, and their file: `catalogue/v1/device=<slug>/month=<YYYY-MM>/<run folder's name>.parquet`.

A row is one kernel on one case, with the facts of its run.  The run folder stays the record: a catalogue can be made again from the runs
at any time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ...naming import device_slug
from ...schema import ExitCode, Result, Run, Status
from ..run_folder import folder_name

if TYPE_CHECKING:
    import pyarrow

CATALOGUE = "catalogue"
CATALOGUE_VERSION = 1
"""Version of the files' columns, a folder of its own: a reader knows from the listing whether it can read all files."""
SUFFIX = ".parquet"
RUNS_KEY = b"fusebench.runs"
"""Metadata of a file: names of the folders of its runs, with spaces between them."""
ROW_GROUP = 20_000
"""Rows of a group: a query of one kernel skips groups without it, by the least and greatest kernel of each."""

_TEXT = (
    *("run", "commit", "device", "board", "driver", "cuda", "torch", "triton", "ptxas", "fusebench", "timer", "cache"),
    *("suite", "case", "op", "params", "kernel", "role", "status", "yardstick", "baseline", "code", "verdict"),
)
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(_TEXT, "string"),
    "created": "timestamp[us]",
    "schema_version": "int32",
    "exit_code": "int32",
    "complete": "bool",
    "dirty": "bool",
    "gating": "bool",
    "usable": "bool",
    "time_us": "float64",
    "low_us": "float32",
    "high_us": "float32",
    "speedup": "float64",
    "limit_us": "float64",
    "rms_error": "float32",
    "processes": "int32",
}
"""Arrow type by column.  docs/stores.md says what each holds."""
_KEPT = frozenset(Status) - {Status.UNSUPPORTED, Status.NOT_RUNNABLE}


def file_of(run: Run) -> str:
    """Path of the catalogue's file of `run`, relative to the results."""
    month = moment(run).strftime("%Y-%m")
    return f"{CATALOGUE}/v{CATALOGUE_VERSION}/device={device_slug(run.environment.device_name)}/month={month}/{folder_name(run)}{SUFFIX}"


def run_table(run: Run) -> pyarrow.Table:
    """The rows of `run`; a kernel that does not support a case, or cannot run on the device, has none.

    Raises:
        RunRecordError: `run.created` is not an ISO 8601 time.
    """

    environment = run.environment
    shared = {name: getattr(environment, name) for name in ("driver", "cuda", "torch", "triton", "ptxas", "fusebench")}
    shared |= {"device": environment.device_name, "commit": environment.git_commit}
    shared |= {"run": run.id, "created": moment(run).replace(tzinfo=None), "timer": run.timer, "cache": str(run.plan.cache)}
    shared |= {"dirty": environment.git_dirty, "exit_code": run.exit_code, "complete": run.complete, "schema_version": run.schema_version}
    cases = {one.case.key: one for one in run.cases}
    rows = []
    for result in run.results:
        if result.status not in _KEPT:
            continue
        summary = cases.get(result.case_key)
        case: dict[str, Any] = {"params": "", "board": environment.device_uuid}
        if summary is not None:
            case = {"params": params_digest(summary.case.params), "yardstick": summary.stream_shape, "baseline": summary.baseline or ""}
            case |= {"limit_us": summary.limit_us, "board": summary.board or environment.device_uuid}
        usable = run.exit_code != ExitCode.DEVICE_UNFIT and summary is not None and not summary.not_cold and _usable(result)
        rows.append(shared | case | {"usable": usable} | _figures(result))
    return make_table(rows)


def make_table(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """Rows as a table with all of `COLUMNS`; an absent value is null."""
    import pyarrow

    columns = {name: pyarrow.array([row.get(name) for row in rows], _arrow(kind)) for name, kind in COLUMNS.items()}
    return pyarrow.table(columns)


def encode(table: pyarrow.Table, runs: Sequence[str]) -> bytes:
    """`table` as a Parquet file of the runs in the folders `runs`, sorted so that a query of one kernel reads little."""
    import pyarrow
    import pyarrow.parquet

    table = table.sort_by([(name, "ascending") for name in ("kernel", "suite", "case", "created")])
    table = table.replace_schema_metadata({RUNS_KEY: " ".join(runs).encode()})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def params_digest(params: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a case's parameters: a case that kept its name and computes otherwise is another series."""
    return hashlib.sha256(msgspec.json.encode(params, order="sorted")).hexdigest()[:8]


def moment(run: Run) -> datetime:
    """The time of `run`, in UTC.

    Raises:
        RunRecordError: it is not an ISO 8601 time.
    """
    return datetime.strptime(folder_name(run).partition("_")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def _usable(result: Result) -> bool:
    timing = result.measurement
    whole = result.status is Status.MEASURED and not result.covers and not result.suspicious
    return whole and timing is not None and math.isfinite(timing.time_us.value) and timing.time_us.value > 0


def _figures(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(result, name) for name in ("suite", "case", "op", "kernel")}
    found |= {"role": str(result.role), "status": str(result.status), "gating": result.speed_gates, "code": result.code}
    found["verdict"] = str(result.verdict.kind) if result.verdict is not None else None
    found["rms_error"] = result.accuracy.rms_error if result.accuracy is not None else None
    timing = result.measurement
    if timing is None:
        return found
    time = timing.time_us
    found |= {"time_us": time.value, "low_us": time.low, "high_us": time.high, "processes": timing.processes}
    return found | {"speedup": timing.speedup.value if timing.speedup is not None else None}


def _arrow(kind: str) -> pyarrow.DataType:
    import pyarrow

    return pyarrow.timestamp("us") if kind == "timestamp[us]" else pyarrow.type_for_alias(kind)
