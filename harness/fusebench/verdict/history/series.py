"""A history of runs as series: one figure of one kernel on one case, over the runs whose figures mean the same.

The newest run says what the others must agree with.  Every run, and every figure of a run, that is left out is left out for a reason that
can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import RunRecordError
from ...schema import Case, ExitCode, Result, Run, Status, boards_of
from ...store.finding import superseded
from ..comparability import board_differences, case_differences, fingerprint_differences, record_differences
from ..margins.support import board_of
from ..record_validation import require_valid


class Figure(StrEnum):
    """The figure that a series holds; each grows as the kernel gets slower."""

    SOL = "sol"
    """The kernel's time over the case's limit, from the same rounds: 1 / share of the speed of light."""
    SPEEDUP = "speedup"
    """The kernel's time over that of the case's baseline, the split chain, in the same rounds: 1 / speedup."""
    RAW = "raw"
    """Microseconds, from runs with the newest run's driver and toolchain only, each case on the newest run's board only."""


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """The figures of one kernel on one case in one run."""

    time_us: float
    sol: float | None
    speedup: float | None
    gating: bool

    def value(self, figure: Figure) -> float | None:
        """The figure; None if the run has none: a baseline has no speedup, and a run without a yardstick has no share."""
        if figure is Figure.RAW:
            return self.time_us
        quotient = self.sol if figure is Figure.SOL else self.speedup
        return 1.0 / quotient if quotient is not None else None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one run that a history needs: a hundred whole records would not fit into memory."""

    run: Run
    """The record without its cases and results."""
    time: datetime
    cases: dict[str, Case]
    """By `suite:name`; cases whose label `cold` is contradicted are left out."""
    baselines: dict[str, str | None]
    streams: dict[str, str]
    """How the case's streaming yardstick was launched (`CaseSummary.stream_shape`)."""
    boards: dict[str, str]
    """UUID of the board that measured the case: a run may be of several."""
    readings: dict[tuple[str, str], Reading]
    """By case key and kernel id; kernels that cover a part of their op are left out."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the history leaves out, and why."""

    run: str
    time: datetime
    reason: str


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one case over the runs of a history."""

    suite: str
    case: str
    kernel: str
    figure: Figure
    places: tuple[int, ...]
    """Numbers of the runs that hold the series, in the history's order."""
    values: tuple[float, ...]
    times_us: tuple[float, ...]
    gating: bool
    """Whether it can change the exit code: the kernel is neither a peer's nor torch.compile's, and the newest run with the case measured
    it."""

    def yardsticks_us(self) -> NDArray[np.float64]:
        """Times of the yardstick that the figure is relative to, in microseconds, by run; 1 for raw times, which have none."""
        found: NDArray[np.float64] = np.asarray(self.times_us) / np.asarray(self.values)
        return found


Wanted = Callable[[Case, str], bool]
"""Whether a case and a kernel id are selected."""


def snapshot(run: Run) -> Snapshot:
    """Reduce `run` to the part that a history needs.

    Raises:
        RunRecordError: the record holds what no measurement gives, its device was not fit to measure, or its time cannot be read.
    """
    require_valid(run)
    if run.exit_code == ExitCode.DEVICE_UNFIT:
        raise RunRecordError(f"run {run.id} ended with exit code 3: its device was not fit to measure")
    try:
        time = datetime.fromisoformat(run.created)
    except ValueError as error:
        raise RunRecordError(f"run {run.id}: created={run.created!r} is not an ISO 8601 time") from error
    cases = {one.case.key: one for one in run.cases if not one.not_cold}
    return Snapshot(
        run=msgspec.structs.replace(run, cases=[], results=[], kernels=[], suites=[], spending=None, warnings=[], calibration=None),
        time=time if time.tzinfo is not None else time.replace(tzinfo=UTC),
        cases={key: summary.case for key, summary in cases.items()},
        baselines={key: summary.baseline for key, summary in cases.items()},
        streams={key: summary.stream_shape for key, summary in cases.items()},
        boards={key: board_of(summary, run) for key, summary in cases.items()},
        readings={
            (one.case_key, one.kernel): reading
            for one in run.results
            if one.case_key in cases and not one.suspicious and (reading := _reading(one))
        },
    )


def comparable_runs(
    snapshots: Sequence[Snapshot], figure: Figure, *, since: datetime | None = None, last: int | None = None
) -> tuple[list[Snapshot], list[LeftOut]]:
    """The runs whose `figure` means the same as the newest one's, in order of time, and those left out.

    Args:
        snapshots: in any order; of records with one id the first counts.
        figure: raw times ask for more agreement than ratios do.
        since: earlier runs are left out without a word, as are those before the `last` comparable ones: that was asked for.
    """
    recent = [one for one in snapshots if since is None or one.time >= since]
    every = sorted({one.run.id: one for one in reversed(recent)}.values(), key=lambda one: (one.time, one.run.id))
    twice = superseded((one.run, one.cases.keys()) for one in every)
    left_out = [
        LeftOut(run=one.run.id, time=one.time, reason=f"run {twice[one.run.id]} went on with it and holds its cases")
        for one in every
        if one.run.id in twice
    ]
    ordered = [one for one in every if one.run.id not in twice]
    kept = []
    for one in ordered:
        differences = _differences(one, ordered[-1], figure)
        if differences:
            left_out.append(LeftOut(run=one.run.id, time=one.time, reason="; ".join(differences)))
        else:
            kept.append(one)
    left_out.sort(key=lambda one: (one.time, one.run))
    if last is not None and len(kept) > last:
        kept = kept[-last:]
        left_out = [one for one in left_out if one.time >= kept[0].time]
    return kept, left_out


def series_of(runs: Sequence[Snapshot], figure: Figure, wanted: Wanted = lambda case, kernel: True) -> list[Series]:
    """One series for every wanted kernel and case that any of `runs` measured, by the newest definition of the case.

    A run whose case of that name computes otherwise, whose figure is relative to another baseline or yardstick, or whose raw time is of
    another board, has no part in the case's series.
    """
    newest = _newest_cases(runs)
    found: dict[tuple[str, str], list[tuple[int, Reading, float]]] = {}
    for place, one in enumerate(runs):
        alike = {key for key in one.cases if _alike(one, runs[newest[key]], key, figure)}
        for (key, kernel), reading in one.readings.items():
            value = reading.value(figure) if key in alike and wanted(runs[newest[key]].cases[key], kernel) else None
            if value is not None:
                found.setdefault((key, kernel), []).append((place, reading, value))
    return [
        Series(
            suite=(case := runs[newest[key]].cases[key]).suite,
            case=case.name,
            kernel=kernel,
            figure=figure,
            places=tuple(place for place, _, _ in points),
            values=tuple(value for _, _, value in points),
            times_us=tuple(reading.time_us for _, reading, _ in points),
            gating=points[-1][1].gating and points[-1][0] == newest[key],
        )
        for (key, kernel), points in found.items()
    ]


def _newest_cases(runs: Sequence[Snapshot]) -> dict[str, int]:
    """By key, the place of the newest run that has the case."""
    return {key: place for place, one in enumerate(runs) for key in one.cases}


def _alike(one: Snapshot, newest: Snapshot, key: str, figure: Figure) -> bool:
    if figure is Figure.SPEEDUP and one.baselines[key] != newest.baselines[key]:
        return False
    if figure is Figure.SOL and one.streams[key] != newest.streams[key]:
        return False
    if figure is Figure.RAW and one.boards[key] != newest.boards[key]:
        return False
    return not case_differences(newest.cases[key], one.cases[key])


def _differences(one: Snapshot, newest: Snapshot, figure: Figure) -> list[str]:
    found = record_differences(newest.run, one.run)
    shared = one.streams.keys() & newest.streams.keys()
    if figure is Figure.RAW:
        found += fingerprint_differences(newest.run, one.run)
        if not _shares_a_board(one, newest, shared):
            found += board_differences(newest.run, one.run) or ["another board for each case"]
    if figure is Figure.SOL and shared and all(one.streams[key] != newest.streams[key] for key in shared):
        found.append("another streaming yardstick, so shares of the speed of light do not compare (--figure speedup compares the runs)")
    return found


def _shares_a_board(one: Snapshot, newest: Snapshot, shared: Set[str]) -> bool:
    """Whether a board measured any of the `shared` cases in both runs; without shared cases, whether both runs have a board in common."""
    if shared:
        return any(one.boards[key] == newest.boards[key] for key in shared)
    here, there = (boards_of(each.run.environment.device_uuid) for each in (one, newest))
    return not set(here).isdisjoint(there)


def _reading(result: Result) -> Reading | None:
    timing = result.measurement
    if result.status is not Status.MEASURED or timing is None or result.covers:
        return None  # the time of a part of the op is compared with nothing
    return Reading(timing.time_us.value, timing.sol, timing.speedup.value if timing.speedup else None, result.speed_gates)
