"""Record validation: whether a record can be judged or shown.  Impossible figures mean a corrupted record, not a regression.

A NaN compares as neither slower nor faster, so a verdict based on it is chance. A report divides by some figures and takes logarithms of
others. A record with too little to judge (no case, one replicate) can still be shown.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from ..errors import RunRecordError
from ..naming import device_slug
from ..schema import Accuracy, Estimate, Measurement, Result, Run, Status, SuiteSummary
from ..store.baselines import baseline_folder
from ..store.run_folder import read_run

FEWEST_REPLICATES = 2
"""One replicate gives no interval, and a gate without intervals calls noise a change."""
SHOWN = 4
"""Number of faults that a message names; a record with one fault is often full of them."""


def require_valid(run: Run, what: str = "run") -> None:
    """Refuse a run with impossible or too few figures: raise RunRecordError, which names the first faults.

    `what` says which record it is (`run`, `baseline`).  Looks at every figure once.
    """
    _refuse(f"{what} {run.id} cannot be judged", faults(run))


def load_valid_baseline(results: Path, device_name: str) -> Run | None:
    """The stored baseline of a device model, validated; None if there is none.  Load it once, before anything is measured.

    Raises:
        RunRecordError: it cannot be read, or holds impossible figures.
    """
    folder = baseline_folder(results, device_slug(device_name))
    return valid_baseline(folder) if folder.exists() else None


def valid_baseline(folder: Path) -> Run:
    """The run in `folder`, validated as a baseline.

    Raises:
        RunRecordError: it cannot be read, or holds impossible figures.
    """
    run = read_run(folder)
    require_valid(run, "baseline")
    return run


def require_showable(run: Run) -> None:
    """Refuse a run with `impossible` figures: raise RunRecordError, which names the first."""
    _refuse(f"run {run.id} cannot be shown", impossible(run))


def faults(run: Run) -> list[str]:
    """Reasons not to judge the record: impossible figures, then too few figures; empty for a valid record."""
    if not run.cases or not run.results:
        return [f"it holds {len(run.cases)} cases and {len(run.results)} results; expected at least one of each (an empty suite?)"]
    return [*impossible(run), *(text for result in run.results for text in _too_few(result))]


def impossible(run: Run) -> list[str]:
    """Figures that no measurement gives, entries that appear twice, and missing counterparts, in the record's order."""
    found = [f"case {key} is there {times} times" for key, times in Counter(one.case.key for one in run.cases).items() if times > 1]
    places = Counter((one.case_key, one.kernel) for one in run.results)
    found += [f"{kernel} on {key} is there {times} times" for (key, kernel), times in places.items() if times > 1]
    for summary in run.cases:
        for name in ("copy_us", "stream_us", "control_ratio"):
            found += _estimate(getattr(summary, name), f"case {summary.case.key}: {name}")
    for result in run.results:
        found += _result(result)
    for suite in run.suites:
        found += _suite(suite)
    return found


def _refuse(what: str, found: list[str]) -> None:
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise RunRecordError(f"{what}: {'; '.join(found[:SHOWN])}{more}. Measure again; nothing was changed")


def _result(result: Result) -> list[str]:
    where = f"{result.kernel} on {result.case_key}"
    measured, timing = result.status is Status.MEASURED, result.measurement
    if measured and timing is None:
        return [f"{where}: its status is measured and it has no time"]
    if not measured and timing is not None:
        return [f"{where}: its status is {result.status} and it has a time"]
    found = _measurement(timing, where) if timing is not None else []
    return [*found, *(_accuracy(result.accuracy, where) if measured or result.status is Status.CHECKED else [])]


def _measurement(timing: Measurement, where: str) -> list[str]:
    found = [*_estimate(timing.time_us, f"{where}: time_us"), *_estimate(timing.speedup, f"{where}: speedup")]
    for name in ("busy_us", "gap_us", "host_us", "gb_per_s", "sol"):
        figure = getattr(timing, name)
        # A share of the speed of light is divided by, and no kernel that ran has one of 0.
        if figure is not None and not (math.isfinite(figure) and figure >= 0 and (figure or name != "sol")):
            found.append(f"{where}: {name} is {figure!r}; expected a finite number that is not negative, and for sol not 0")
    return found


def _too_few(result: Result) -> list[str]:
    timing = result.measurement
    if timing is None or (timing.replicates >= FEWEST_REPLICATES and timing.rounds >= 1):
        return []
    seen = f"{timing.replicates} replicates of {timing.rounds} rounds"
    where = f"{result.kernel} on {result.case_key}"
    return [f"{where}: too few samples, {seen}; expected at least {FEWEST_REPLICATES} replicates"]


def _suite(suite: SuiteSummary) -> list[str]:
    """Faults of the sums; those of older records lack all of the figures per step."""
    where = f"suite {suite.name}"
    found = [
        f"{where}: {name} of {kernel} is {figure!r}; expected a positive finite number"
        for name in ("weighted_speedup", "covered_weight", "baseline_us_per_step")
        for kernel, figure in getattr(suite, name).items()
        if not (math.isfinite(figure) and figure > 0)
    ]
    for kernel, figure in suite.saved_us_per_step.items():
        if not math.isfinite(figure):
            found.append(f"{where}: saved_us_per_step of {kernel} is {figure!r}; expected a finite number")
        beside = ("covered_cases", "covered_weight", "baseline_us_per_step")
        found += [f"{where}: {kernel} has saved_us_per_step and no {name}" for name in beside if kernel not in getattr(suite, name)]
    return found


def _estimate(estimate: Estimate | None, where: str) -> list[str]:
    if estimate is None:
        return []
    if not (math.isfinite(estimate.value) and estimate.value > 0):
        return [f"{where} is {estimate.value!r}; expected a positive finite number"]
    if not estimate.low <= estimate.value <= estimate.high:
        return [f"{where} {estimate.value!r} lies outside of its interval [{estimate.low!r}, {estimate.high!r}]"]
    if not 0 < estimate.level < 1:
        return [f"{where}: its interval's level is {estimate.level!r}; expected a share between 0 and 1"]
    return []


def _accuracy(accuracy: Accuracy | None, where: str) -> list[str]:
    if accuracy is None:
        return []
    names = ("rms_error", "max_error", "split_rms_error", "split_max_error", "channel_rms_error", "split_channel_rms_error")
    errors = {name: getattr(accuracy, name) for name in names}
    errors |= {
        f"{name} of output {one.name!r}": error
        for name in ("rms", "split_rms", "floor", "rounding", "spread")
        for one in accuracy.outputs
        if (error := getattr(one, name)) is not None
    }
    # A failed check may hold NaN; one that passed never does.  An infinite error of the past would excuse every error of today.
    bad = [f"{name} is {error!r}" for name, error in errors.items() if not (math.isfinite(error) and error >= 0)]
    return [f"{where}: {', '.join(bad)}; expected errors that are finite and not negative"] if bad else []
