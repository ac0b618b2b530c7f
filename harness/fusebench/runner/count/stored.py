"""Records of earlier runs: read again from their reports, and put beside a later run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...counters.capturing import read_report
from ...counters.metric_sets import missing
from ...counters.records import Capture, CaptureStatus, CounterRun
from ...errors import UsageError
from ...verdict.comparability import fingerprint_differences

BASE_SIDE = "base"
"""`Capture.side` of what a run is compared with."""


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
    """`run` with the captures of `earlier` that it has a counterpart of, as its side `base`.

    What else differs between the two (driver, versions, metrics, cache control) is put among the warnings.
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
    taken: list[Capture] = []
    for capture in earlier.captures:
        if capture.side or (capture.case_key, capture.kernel) not in wanted:
            continue
        if earlier_params.get(capture.case_key) != params.get(capture.case_key):
            warnings.append(f"{name} captured {capture.case_key} with other parameters, and is not compared there")
            continue
        taken.append(msgspec.structs.replace(capture, side=BASE_SIDE, report=""))
    if not taken:
        warnings.append(f"{name} has no kernel and case in common with this one")
    commit = f", commit {earlier.environment.git_commit[:12]}" if earlier.environment.git_commit else ""
    return msgspec.structs.replace(
        run,
        base=f"{name} of {earlier.created}{commit}",
        captures=(*run.captures, *taken),
        warnings=tuple(dict.fromkeys((*run.warnings, *warnings))),
    )
