"""The cause of a change point, told from the records: the kernel's code, the method, the toolchain, the hardware, or noise.

The strongest evidence comes first: a board's own times on both levels, then a change of the measuring program, then one of the toolchain.
Only what none of them explains is a regression or an improvement of the code.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...schema import Run
from ..comparability import harness_differences, toolchain_changes
from .shifts import Shift, Track

NEAR = 2
"""A change point lies within two runs of its cause in 99 of 100 simulated histories."""
_ALIKE = 3
"""So many other kernels that moved at the same place show that a neighbouring run's toolchain or method moved them."""
_RUNS_EACH = 3
"""A board with so many runs on both levels tells whether it moved itself."""
_SHORT = 15
"""A level of at most so many runs that ends where it began is temporary."""


class Cause(StrEnum):
    """The class of a change."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    METHOD = "method"
    """Another version of fusebench, another timer or yardstick."""
    TOOLCHAIN = "toolchain"
    """Another driver, CUDA, torch, Triton or assembler."""
    HARDWARE = "hardware"
    """Another board, or a machine that changed its speed."""
    NOISE = "noise"
    """Temporary, or nothing that the records hold changed, the machine code included."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What one run says about one series besides its time."""

    code: str | None = None
    """Digest of the machine code; None if unknown."""
    yardstick: str | None = None


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a shift and the evidence, in words."""

    cause: Cause
    reason: str


def around(track: Track) -> list[tuple[int, ...]]:
    """By shift, the numbers of the runs that hold the series, from `NEAR` before its last run to `NEAR` after its first."""
    here = itertools.accumulate(shift.runs_before for shift in track.shifts)
    return [track.series.places[max(0, place - 1 - NEAR) : place + NEAR + 1] for place in here]


def explain(
    track: Track, *, runs: Sequence[Run], boards: NDArray[np.int64], held: Mapping[int, Place], moved: Mapping[int, int], margin: float
) -> list[Explained]:
    """The causes of the shifts of `track`, which has some.

    Args:
        runs: of the whole history, in order of time.
        boards: numbers of the boards that measured the series, by run of the whole history.
        held: by number of the run, what it says about the series; at least of the runs around each shift.
        moved: by number of a run, how many other kernels moved within `NEAR` runs of it.
        margin: share of a time within which two levels are one.
    """
    edges = [0, *itertools.accumulate(shift.runs_before for shift in track.shifts), len(track.series.places)]
    values, on_boards = np.asarray(track.series.values), boards[list(track.series.places)]
    levels = [_by_board(values[start:end], on_boards[start:end]) for start, end in itertools.pairwise(edges)]
    return [
        _explain(
            track,
            place,
            runs=runs,
            near=(near[0], near[-1]),
            common=_common_change(*levels[place : place + 2]),
            held=held,
            moved=moved,
            margin=margin,
        )
        for place, near in enumerate(around(track))
    ]


def _explain(
    track: Track,
    place: int,
    *,
    runs: Sequence[Run],
    near: tuple[int, int],
    common: float | None,
    held: Mapping[int, Place],
    moved: Mapping[int, int],
    margin: float,
) -> Explained:
    """The cause of the shift `track.shifts[place]`; `common` is the change on the boards of both its levels."""
    shift = track.shifts[place]
    exact = shift.place_before, shift.place
    changed_there, changed_near = _code_changed(held, exact), _code_changed(held, near)
    # Where the code changed exactly there, only a toolchain that other kernels felt, too, is the cause from a run nearby.
    places = [exact, near] if moved.get(shift.place, 0) >= _ALIKE or not changed_there else [exact]

    if common is not None and abs(common) < abs(math.log(shift.change)) / 2:
        return Explained(cause=Cause.HARDWARE, reason=f"boards of both levels moved by {100 * math.expm1(common):+.1f} % only")
    pairs = [(runs[old], runs[new]) for old, new in places]
    for cause, found in (
        (Cause.METHOD, [_method(*pair, *(held.get(one, Place()) for one in numbers)) for pair, numbers in zip(pairs, places, strict=True)]),
        (Cause.TOOLCHAIN, [toolchain_changes(new, old) for old, new in pairs]),
        (Cause.HARDWARE, [_hardware(shift, changed_there or changed_near, no_common_board=common is None)]),
        (Cause.NOISE, [_noise(track, place, pairs[0], changed_there or changed_near, margin)]),
    ):
        reason = next((texts for texts in found if texts), None)
        if reason:
            return Explained(cause=cause, reason="; ".join(reason))
    commits = [one.environment.git_commit[:10] or "unknown" for one in pairs[0]]
    return Explained(cause=Cause.REGRESSION if shift.slower else Cause.IMPROVEMENT, reason=f"commits {commits[0]}..{commits[1]}")


def moved_near(tracks: Sequence[Track], kernel: str) -> dict[int, int]:
    """By number of a run, how many kernels other than `kernel` moved within `NEAR` runs of it."""
    found: dict[int, set[str]] = {}
    for track in tracks:
        for shift in track.shifts if track.series.kernel != kernel else ():
            for place in range(shift.place - NEAR, shift.place + NEAR + 1):
                found.setdefault(place, set()).add(track.series.kernel)
    return {place: len(kernels) for place, kernels in found.items()}


def _method(old: Run, new: Run, before: Place, after: Place) -> list[str]:
    found = harness_differences(new, old)
    if old.timer != new.timer:
        found.append(f"timer: {old.timer} -> {new.timer}")
    if before.yardstick is not None and after.yardstick is not None and before.yardstick != after.yardstick:
        found.append(f"yardstick: {before.yardstick or 'none'} -> {after.yardstick or 'none'}")
    return found


def _code_changed(held: Mapping[int, Place], places: tuple[int, int]) -> bool | None:
    """Whether the machine code differs between two runs; None if it is unknown."""
    before, after = (held.get(one, Place()).code for one in places)
    return None if before is None or after is None else before != after


def _hardware(shift: Shift, changed: bool | None, *, no_common_board: bool) -> list[str]:
    if shift.yardstick_moved:
        return ["the yardstick moved, not this kernel"]
    if no_common_board and not changed:
        return ["no board measured both levels, so the boards may differ, and not the code"]
    return []


def _noise(track: Track, place: int, pair: tuple[Run, Run], changed: bool | None, margin: float) -> list[str]:
    shift = track.shifts[place]
    old, new = (one.environment for one in pair)

    def returns(start: int) -> bool:
        """Whether the level that begins at this shift is short, and the next one is that before it."""
        if start < 0 or start + 1 >= len(track.shifts):
            return False
        first, second = track.shifts[start], track.shifts[start + 1]
        return first.runs_after <= _SHORT and abs(math.log(second.after / first.before)) <= math.log1p(margin)

    if not changed and returns(place):
        return [f"temporary: back after {shift.runs_after} runs"]
    if not changed and returns(place - 1):
        return ["the end of a temporary level"]
    if changed is False:
        return ["the machine code, the toolchain and the boards are the same"]
    if old.git_commit and old.git_commit == new.git_commit and not (old.git_dirty or new.git_dirty):
        return ["neither commit, toolchain nor boards changed"]
    return []


def _by_board(values: NDArray[np.float64], boards: NDArray[np.int64]) -> dict[int, float]:
    """The middle figure of one level on every board with enough runs; `boards` are the boards of its runs, by number."""
    order = np.lexsort((values, boards))
    counts = np.bincount(boards)
    (enough,) = np.nonzero(counts >= min(_RUNS_EACH, len(values)))
    middles = (np.cumsum(counts) - counts + counts // 2)[enough]
    return dict(zip(enough.tolist(), values[order[middles]].tolist(), strict=True))


def _common_change(before: Mapping[int, float], after: Mapping[int, float]) -> float | None:
    """Median over the boards of both levels of the change of the log figure on each; None without such a board."""
    changes = [math.log(after[board] / value) for board, value in before.items() if board in after]
    return statistics.median(changes) if changes else None
