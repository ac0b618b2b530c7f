"""The scatter between stored runs: every pair of runs of equal code, compared as a gate compares them.

A gate judges a run against a baseline that another process measured, often on another board.  How far apart equal code then lies is not in
either run.  It is known from runs that are there already.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from ...schema import ClassScatter, Reference, Result, Run, RunScatter, boards_of
from ...stats.scatter import Difference, components
from ...store.finding import superseded
from ...store.scatter_file import SCATTER_VERSION
from ..comparability import case_differences, record_differences
from ..identical_code import equal_code
from ..margins.call_classes import DURATION_CLASSES_US, call_class, launches_of
from ..margins.support import board_of, own_variance, support_of
from .yardsticks import LaunchGaps, drift_of, other_stream, relative_to_machine, yardstick_drifts

FEWEST = 30
"""A class with fewer comparisons has no components: the 95 % range of fewer is little more than their largest."""

Place = tuple[Reference, bool, int]
"""A reference, whether calls make several launches, and the class of durations."""


def scatter_between(runs: Sequence[Run]) -> RunScatter | None:
    """The components by class of calls, from all pairs of the runs that may be compared with the newest one; None if no class is known.

    Kernels count whose code is known to be equal in both runs.  torch.compile's and peers' do not, nor do repeated cases.
    """
    if not runs:
        return None
    newest = max(runs, key=lambda run: run.created)
    twice = superseded((run, {one.case.key for one in run.cases}) for run in runs)
    runs = [run for run in runs if not run.joined and run.id not in twice and not record_differences(newest, run)]
    found: dict[Place, list[Difference]] = defaultdict(list)
    errors: dict[Place, list[float]] = defaultdict(list)
    for older, newer in combinations(sorted(runs, key=lambda run: run.created), 2):
        for place, difference, error in differences(newer, older):
            found[place].append(difference)
            errors[place].append(error)
    classes = [one for place in sorted(found) if (one := _class(place, found[place], errors[place])) is not None]
    if not classes:
        return None
    return RunScatter(
        version=SCATTER_VERSION,
        device_name=newest.environment.device_name,
        created=newest.created,
        timer=newest.timer,
        cache=newest.plan.cache,
        runs=len(runs),
        boards=len(boards_of(*(run.environment.device_uuid for run in runs))),
        classes=tuple(classes),
    )


def differences(new_run: Run, old_run: Run) -> Iterator[tuple[Place, Difference, float]]:
    """Every comparison of equal code between two runs that are not joined, by both references.

    With the standard error of the new time over its placements.
    """
    drifts = yardstick_drifts(new_run, old_run)
    gaps = LaunchGaps(new_run, old_run, drifts)
    old_cases = {summary.case.key: summary for summary in old_run.cases}
    old_results = {(one.case_key, one.kernel): one for one in old_run.results}
    summaries = {summary.case.key: summary for summary in new_run.cases}
    for new in new_run.results:
        key = new.case_key
        now, then, old = summaries.get(key), old_cases.get(key), old_results.get((key, new.kernel))
        if now is None or then is None or old is None or now.same_as or now.not_cold or then.not_cold:
            continue
        if not _equal(new, old, new_run, old_run) or case_differences(now.case, then.case):
            continue
        after, before = new.measurement, old.measurement
        assert after is not None
        assert before is not None
        several, duration = call_class(after.time_us.value, launches_of(after, before))
        own = own_variance(after) + own_variance(before)
        if not math.isfinite(own):
            continue
        logs: dict[Reference, float] = {}
        if (drift := drift_of(now, drifts, then)) is not None:
            logs[Reference.MACHINE] = math.log(relative_to_machine(after, before, drift, gaps.of(new)))
        if now.stream_us is not None and then.stream_us is not None and not other_stream(now, then):
            logs[Reference.CASE] = math.log(after.time_us.value / before.time_us.value * then.stream_us.value / now.stream_us.value)
        same_board = board_of(now, new_run) == board_of(then, old_run)
        processes = support_of(after, new_run).inverse_processes + support_of(before, old_run).inverse_processes
        for reference, log in logs.items():
            difference = Difference(log_ratio=log, own=own, processes=processes, same_board=same_board)
            yield (reference, several, duration), difference, math.sqrt(own_variance(after))


def _equal(new: Result, old: Result, new_run: Run, old_run: Run) -> bool:
    """Whether both runs timed the kernel, all of it, with the same code."""
    if new.measurement is None or old.measurement is None or new.covers or old.covers or not new.speed_gates:
        return False
    if new.suspicious or old.suspicious:
        return False
    return equal_code(new, old, new_run, old_run)


def _class(place: Place, found: Sequence[Difference], errors: Iterable[float]) -> ClassScatter | None:
    same = sum(one.same_board for one in found)
    if len(found) < FEWEST:
        return None
    process, board = components(found)
    reference, several, duration = place
    edges = [0.0, *DURATION_CLASSES_US, math.inf]
    return ClassScatter(
        reference=reference,
        several_launches=several,
        low_us=edges[duration],
        high_us=edges[duration + 1],
        process=process,
        board=board,
        placement=statistics.median(errors),
        same_board=same,
        other_board=len(found) - same,
    )
