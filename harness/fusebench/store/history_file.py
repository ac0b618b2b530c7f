"""Many runs in one Parquet file, reduced to the needs of a gate and a history: times with intervals, accuracy, digests of machine code.

A file holds one row per run, with the columns of `Run` and `replicates`.  `NOT_KEPT` names the fields that are left out and the value that
each has when the file is read.  Times and yardsticks keep their full precision; the fields of `SINGLE` have 24 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import RunRecordError
from ..schema import SCHEMA_VERSION, Run
from .files import write_file
from .run_folder import SAMPLES_FILE, read_samples
from .tables import decode_table, encode_table

HISTORY_SUFFIX = ".parquet"
HISTORY_VERSION = 1
"""Version of the file's format, raised whenever a reader of the previous version could misread the new one."""
LATE_NS = 20_000
"""A call that idles inside by this much more than the arm's calls of the replicate usually do (nanoseconds) had to wait for the host."""
NOT_KEPT: dict[str, Any] = {
    "calibration": None,
    "warnings": [],
    "kernels": [],
    "environment.state": {},
    "spending.phases_s": {},
    "spending.kernels_s": {},
    "cases.case.source": "",
    "cases.control_ratio": None,
    "results.shape": "",
    "results.verdict": None,
    "results.attachments": [],
    "results.accuracy.max_error": 0.0,
    "results.accuracy.mean_error": 0.0,
    "results.accuracy.split_max_error": 0.0,
    "results.accuracy.equal_to_split": 0.0,
    "results.accuracy.within_loose_tolerance": False,
    "results.accuracy.errors_only": False,
    "results.accuracy.seed": 0,
    "results.accuracy.reason": "",
    "results.measurement.busy_us": 0.0,
    "results.measurement.gap_us": None,
    "results.measurement.host_us": None,
    "results.measurement.sol": None,
    "results.measurement.gb_per_s": 0.0,
    "results.measurement.peak_share": None,
    "results.measurement.extra_memory_bytes": None,
}
"""Dotted paths of the fields without a column, and their values on reading. `sol` is computed anew from the case's limit."""
SINGLE = frozenset(
    {
        *(f"results.measurement.speedup.{name}" for name in ("value", "low", "high")),
        *(f"results.accuracy.{name}" for name in ("rms_error", "split_rms_error", "channel_rms_error", "split_channel_rms_error")),
        "results.accuracy.outputs.split_rms",
    }
)
"""Dotted paths of the fields that are stored in single precision."""
_REMEDY = "restore it from git, or write it anew with `fusebench history RUNS --keep FILE`"


class ReplicateTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one arm on one case in one replicate that made the same number of launches."""

    case: str
    """`suite:name`."""
    arm: str
    process: int
    replicate: int
    kernels: int
    """Launches per call."""
    calls: int
    span_ns: float
    """Median time from the first kernel's start to the last kernel's end."""
    long: int
    """Calls whose span is longer than the median of this arm and replicate by more than `LATE_NS`."""
    opening: int
    """Calls that opened the replicate: first in the first round."""
    late: int
    """Calls that idled inside by more than `LATE_NS` longer than the median of this arm and replicate."""
    late_opening: int
    """Late calls among the calls that opened the replicate."""
    late_after_round_0: int


class KeptRun(Run, frozen=True, kw_only=True):
    """A run without the fields of `NOT_KEPT`, with its times per replicate."""

    replicates: tuple[ReplicateTimes, ...] = ()
    """Empty for a run without samples."""


def keep_run(run: Run, folder: Path | None = None) -> KeptRun:
    """`run` with the times per replicate from the samples in `folder`, where it is given and holds samples.

    Raises:
        RunRecordError: the samples cannot be read.
    """
    fields = {name: getattr(run, name) for name in Run.__struct_fields__}
    if isinstance(run, KeptRun):
        fields["replicates"] = run.replicates
    elif folder is not None and (folder / SAMPLES_FILE).exists():
        fields["replicates"] = tuple(_replicates(folder))
    return KeptRun(**{**fields, "schema_version": SCHEMA_VERSION})


def write_history(file: Path, runs: Iterable[KeptRun]) -> int:
    """Replace `file` by `runs`, each once, in order of time, and return their number."""
    once = {run.id: run for run in runs}
    rows = sorted(once.values(), key=lambda run: (run.created, run.id))
    metadata = {"fusebench.history_version": str(HISTORY_VERSION)}
    write_file(file, encode_table(rows, KeptRun, metadata, left_out=NOT_KEPT, single=SINGLE))
    return len(rows)


def read_history_file(file: Path) -> list[KeptRun]:
    """The runs that `file` holds, in order of time, with the fields of `NOT_KEPT` at the values given there.

    Raises:
        RunRecordError: the file is missing, truncated, garbled, of a newer version, or does not hold runs.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunRecordError(f"{file}: cannot be read: {error.strerror or error}") from error
    rows, metadata = decode_table(content, KeptRun, file, remedy=_REMEDY)
    version = metadata.get("fusebench.history_version", "")
    if not version.isdecimal():
        raise RunRecordError(f"{file}: not a history that fusebench wrote; expected the metadata `fusebench.history_version`; {_REMEDY}")
    if int(version) > HISTORY_VERSION:
        raise RunRecordError(f"{file}: version {version} is newer than this fusebench reads (up to {HISTORY_VERSION}); upgrade fusebench")
    try:
        for row in rows:
            _fill(row, NOT_KEPT)
        return [_with_sol(run) for run in msgspec.convert(rows, list[KeptRun], strict=False)]
    except (msgspec.ValidationError, OverflowError, TypeError, AttributeError) as error:
        raise RunRecordError(f"{file}: its rows are no runs: {error}; {_REMEDY}") from error


def _fill(row: dict[str, Any], values: dict[str, Any]) -> None:
    """Put every value at its dotted path in `row`: into each entry of a list on the way, and nowhere under a null."""
    for path, value in values.items():
        *parents, name = path.split(".")
        holders: list[Any] = [row]
        for parent in parents:
            found = [holder.get(parent) for holder in holders]
            holders = [one for entry in found for one in (entry if isinstance(entry, list) else [entry]) if one is not None]
        for holder in holders:
            holder[name] = value


def _with_sol(run: KeptRun) -> KeptRun:
    """`run` with each share of the speed of light: the limit's time over the kernel's."""
    limits = {summary.case.key: summary.limit_us for summary in run.cases}
    results = []
    for result in run.results:
        timing, limit_us = result.measurement, limits.get(result.case_key)
        if timing is not None and limit_us is not None and not result.covers:
            timing = msgspec.structs.replace(timing, sol=limit_us / timing.time_us.value)
        results.append(msgspec.structs.replace(result, measurement=timing))
    return msgspec.structs.replace(run, results=results)


def _replicates(folder: Path) -> Sequence[ReplicateTimes]:
    calls = read_samples(folder)
    calls["idle"] = calls.span_ns - calls.busy_ns
    calls["opening"] = (calls["round"] == 0) & (calls.position == 0)
    place = ["case", "arm", "process", "replicate"]
    calls["long"] = calls.span_ns - calls.groupby(place, observed=True).span_ns.transform("median") > LATE_NS
    calls["late"] = calls.idle - calls.groupby(place, observed=True).idle.transform("median") > LATE_NS
    calls["late_opening"] = calls.late & calls.opening
    calls["late_after_round_0"] = calls.late & (calls["round"] > 0)
    found = calls.groupby([*place, "kernels"], observed=True, sort=False).agg(
        calls=("span_ns", "size"),
        span_ns=("span_ns", "median"),
        **{name: (name, "sum") for name in ("long", "opening", "late", "late_opening", "late_after_round_0")},
    )
    return msgspec.convert(found.reset_index().to_dict("records"), list[ReplicateTimes])
