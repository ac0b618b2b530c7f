"""Stored runs of `fusebench ncu`: found by name, read again from their reports, and put beside a later run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...config import Project
from ...counters.capturing import read_report
from ...counters.command import REPORT_SUFFIX
from ...counters.metric_sets import missing
from ...counters.records import Capture, CaptureStatus, CounterRun
from ...device.nsight import probe_nsight, tool_problem
from ...errors import DeviceUnfitError, UsageError
from ...store.counter_folder import read_counters, seal_of_counters
from ...store.finding import COUNTERS_FILE, find_run
from ...store.seal import ALTERED, altered_words
from ...verdict.comparability import fingerprint_differences

BASE = "base"
"""`Capture.revision` of the base's captures."""


def reread(run: CounterRun, folder: Path, ncu: str, *, metric_set: str, metrics: Sequence[str], only: str = "") -> CounterRun:
    """`run` with the values of `metrics`, read again from the `.ncu-rep` files in `folder`: these hold more than the record.

    Args:
        only: name of the one report that is wanted; empty for all.

    Raises:
        CounterReportError: a report is missing, or is none.
        UsageError: no capture of the run has the report `only`.
    """
    warnings = list(run.warnings)
    captures = []
    for capture in run.captures:
        if only and capture.report != only:
            continue
        if capture.status is CaptureStatus.CAPTURED and capture.report:
            launches = read_report(ncu, folder / capture.report, metrics)
            absent = sorted({name for launch in launches for name in missing(metrics, launch.metrics)})
            warnings += [f"{capture.report} has no value of {', '.join(absent)}"] if absent else []
            capture = msgspec.structs.replace(capture, launches=launches)  # noqa: PLW2901 - the same capture, with other values
        captures.append(capture)
    if only and not captures:
        raise UsageError(f"{folder / only}: no capture of the run {run.id} beside it has this report; expected one that its ncu.json names")
    return msgspec.structs.replace(
        run, metric_set=metric_set, metrics=tuple(metrics), captures=tuple(captures), warnings=tuple(dict.fromkeys(warnings))
    )


def beside(run: CounterRun, earlier: CounterRun) -> CounterRun:
    """`run` with the matching captures of `earlier`, as its revision `base`.

    Other differences between the two (driver, versions, metrics, cache control) are put among the warnings.
    """
    params = {case.key: case.params for case in run.cases}
    wanted = {(capture.case_key, capture.kernel) for capture in run.captures}
    earlier_params = {case.key: case.params for case in earlier.cases}
    name = f"run {earlier.id}"
    settings = [(what, getattr(earlier, what), getattr(run, what)) for what in ("ncu_version", "metric_set", "cache_control")]
    settings.insert(0, ("device", earlier.environment.device_name, run.environment.device_name))
    differences = [
        *fingerprint_differences(run, earlier),
        *(f"{what}: {before} -> {now}" for what, before, now in settings if before != now),
    ]
    warnings = [f"{name} differs in {difference}" for difference in differences]
    warnings += [warning for warning in earlier.warnings if ALTERED in warning]
    taken: list[Capture] = []
    for capture in earlier.captures:
        if capture.revision or (capture.case_key, capture.kernel) not in wanted:
            continue
        if earlier_params.get(capture.case_key) != params.get(capture.case_key):
            warnings.append(f"{name} captured {capture.case_key} with other parameters, and is not compared there")
            continue
        taken.append(msgspec.structs.replace(capture, revision=BASE, report=""))
    if not taken:
        warnings.append(f"{name} has no kernel and case in common with this one")
    commit = f", commit {earlier.environment.git_commit[:12]}" if earlier.environment.git_commit else ""
    return msgspec.structs.replace(
        run,
        base=f"{name} of {earlier.created}{commit}",
        captures=(*run.captures, *taken),
        warnings=tuple(dict.fromkeys((*run.warnings, *warnings))),
    )


def find_counters(text: str, project: Project) -> Path:
    """The folder of the stored run that `text` names: a path, an id or the start of one, or `latest`."""
    return find_run(text, project, records=(COUNTERS_FILE,), made_by="fusebench ncu")


def read_sealed_counters(folder: Path) -> CounterRun:
    """The record in `folder`, with a warning of its own if it does not fit its seal.

    Raises:
        RunRecordError: as `read_counters`.
    """
    run = read_counters(folder)
    altered = seal_of_counters(folder).altered
    return msgspec.structs.replace(run, warnings=(*run.warnings, altered_words(f"run {run.id}", altered, folder))) if altered else run


def put_beside(record: CounterRun, against: str | None, project: Project) -> CounterRun:
    """`record` with the stored run that `against` names as its base; as it is without one."""
    return record if against is None else beside(record, read_sealed_counters(find_counters(against, project)))


def stored_run(text: str, project: Project, what: tuple[str, tuple[str, ...]], *, anew: bool) -> CounterRun:
    """The stored run that `text` names, or the one capture of it whose report it names.

    Args:
        what: a set's name and its metrics.
        anew: read these again from the reports, instead of what the record has.

    Raises:
        RunRecordError, UnknownNameError: there is no such run.
        CounterReportError: a report is missing, or is none.
        DeviceUnfitError: reports are to be read, and Nsight Compute is not there.
    """
    path = Path(text).expanduser()
    if path.suffix == REPORT_SUFFIX:
        return _report_of_a_run(path, what)
    folder = find_counters(text, project)
    record = read_sealed_counters(folder)
    if not anew:
        return record
    return reread(record, folder, _tool(), metric_set=what[0], metrics=what[1])


def _report_of_a_run(path: Path, what: tuple[str, tuple[str, ...]]) -> CounterRun:
    ncu_path = _tool()
    read_report(ncu_path, path, what[1])  # a file that is no report is said to be none, whatever lies beside it
    if not (path.parent / COUNTERS_FILE).is_file():
        raise UsageError(
            f"{path}: a report, but not of a `fusebench ncu`: no {COUNTERS_FILE} lies beside it that says which kernel and case it is of; "
            "open it with Nsight Compute's own viewer"
        )
    return reread(read_sealed_counters(path.parent), path.parent, ncu_path, metric_set=what[0], metrics=what[1], only=path.name)


def _tool() -> str:
    """Path of Nsight Compute, to read reports with; no GPU and no permission is needed for that."""
    probe = probe_nsight()
    problem = tool_problem(probe)
    if problem is not None:
        raise DeviceUnfitError(f"reading .ncu-rep files: {'; '.join(problem)}")
    return probe.path
