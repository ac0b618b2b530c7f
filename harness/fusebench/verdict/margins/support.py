"""What a time stands on: the processes and boards behind it, and the interval of a change between two such times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from ...schema import CaseSummary, ClassScatter, Estimate, Measurement, Run
from ...stats.scatter import interval, standard_error

MOST_ERROR = 0.1
"""A time with a larger standard error was disturbed, or measured in too few placements.  Two of 1190 times of a nightly that a budget had
thinned out had one, and one of them was 2.7 times as long as usual.  It moves the mean of six runs by 17 %.  In a nightly of
two processes of three placements each, five chains of 1388 times had one: a slow host made placements of them up to 8 times as long."""


class Support(msgspec.Struct, frozen=True):
    """The processes and boards of one time."""

    inverse_processes: float
    """The share of one process's variance that is left: 1/8 for eight processes."""
    boards: Mapping[str, float]
    """Weight of each board, by its UUID; the weights add up to 1."""


def board_of(summary: CaseSummary, run: Run) -> str:
    """The UUID of the board that measured the case."""
    return summary.board or run.environment.device_uuid


def support_of(timing: Measurement, run: Run, board: str | None = None) -> Support:
    """The processes and boards behind a time of `run`: its own, or those of the runs that it was joined from, which count the same.

    `board` measured the case, where `run` is of several boards.
    """
    if not timing.runs:
        return Support(1 / timing.processes, {run.environment.device_uuid if board is None else board: 1.0})
    joined = [run.joined[place] for place in timing.runs]
    share = 1 / len(joined)
    measured_on = timing.boards or [one.board for one in joined]
    boards = {board: times * share for board, times in Counter(measured_on).items()}
    return Support(sum(share**2 / one.processes for one in joined), boards)


def board_distance(new: Support, old: Support) -> float:
    """The share of one board's variance in the difference of two times: 0 on one board, 2 on two, 1.5 on one board and two others."""
    boards = new.boards.keys() | old.boards.keys()
    return sum((new.boards.get(board, 0.0) - old.boards.get(board, 0.0)) ** 2 for board in boards)


def units_of(timing: Measurement) -> int:
    """Number of units behind the interval: processes if several, else replicates (`stats.paired`)."""
    return timing.processes if timing.processes > 1 else timing.replicates


FEWEST_UNITS = 8
"""Processes below which their scatter is known worse than that of their placements.  On a nightly of two processes of three placements,
intervals by the two processes held 91.8 % of 730 changes of equal code, by the six placements 93.7 %."""


def own_variance(timing: Measurement) -> float:
    """Variance of the log time as its own run knows it; infinite for one replicate.

    Of few processes it is that of their placements: `change_between` adds the scatter of processes.
    """
    if timing.placement_error is not None and timing.processes < FEWEST_UNITS:
        return timing.placement_error**2
    return standard_error(timing.time_us, units_of(timing)) ** 2


def is_disturbed(variance: float) -> bool:
    """Whether a time whose logarithm has this variance was disturbed; one placement alone, which has no scatter, does not tell."""
    return MOST_ERROR**2 < variance < math.inf


def change_between(
    log_ratio: float,
    new: tuple[Measurement, Run],
    old: tuple[Measurement, Run],
    scatter: ClassScatter,
    widening: float = 1.0,
    *,
    boards: tuple[str, str] | None = None,
) -> Estimate | None:
    """The change with an interval for another process and, between two boards, another board; None where boards differ and their scatter
    is not known.

    `boards` measured the case in either run, where these are of several.  `widening` is the factor by which identical code of this
    comparison scatters more.  An interval over several processes holds their scatter already, and it is counted again: at eight processes
    this adds 3 % to the width.
    """
    here, there = (support_of(*side, board) for side, board in zip((new, old), boards or (None, None), strict=True))
    # Two processes of one board are as far apart as two boards where only these are known.
    distance = board_distance(here, there) if scatter.process is not None else 2.0
    if scatter.board is None and distance > 0:
        return None
    processes = (scatter.process or 0.0) ** 2 * (here.inverse_processes + there.inverse_processes)
    variance = own_variance(new[0]) + own_variance(old[0]) + processes + (scatter.board or 0.0) ** 2 * distance
    return interval(log_ratio, variance * widening**2)
