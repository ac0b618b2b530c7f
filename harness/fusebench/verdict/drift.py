"""How the yardstick moved between two runs: what a faster or slower machine does to calls of one duration.

One case's stream scatters between runs nearly as much as a kernel does, and a ratio to it has the scatter of both.  What differs between
two runs for all calls alike (a clock, a board, a driver) shows in the streams of all cases, whose median hardly scatters.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from ..schema import CaseSummary, Estimate, Run
from .call_classes import duration_class
from .comparability import case_differences

FEWEST_CASES = 9
"""Of fewer the median is known less well than one case's stream: of eight, the smallest and the largest are its 95 % bounds, of nine the
second of either side.  Of unchanged kernels of 3 to 10 us, on eight cases drawn from three nightlies, 60 % passed by the median and 62 % by
their own streams; on nine, 79 % and 61 %."""


class Drift(msgspec.Struct, frozen=True):
    """What happened to the streams of one class of duration."""

    factor: Estimate
    """Time in the new run over that in the old one."""
    cases: int


def stream_drifts(run: Run, baseline: Run) -> dict[int, Drift]:
    """The drift from `baseline` to `run`, by class of duration of the stream in `run`; without classes of fewer than `FEWEST_CASES`.

    Cases count where both runs timed the stream, in the cache state that they are labelled with, and the parameters are the same; those
    that repeat another's work count once.
    """
    old = {summary.case.key: summary for summary in baseline.cases}
    logs: dict[int, list[float]] = defaultdict(list)
    for summary in run.cases:
        before = old.get(summary.case.key)
        if before is None or summary.stream_us is None or before.stream_us is None or summary.same_as:
            continue
        if not (summary.not_cold or before.not_cold or case_differences(summary.case, before.case)):
            logs[duration_class(summary.stream_us.value)].append(math.log(summary.stream_us.value / before.stream_us.value))
    return {duration: Drift(_median(each), len(each)) for duration, each in logs.items() if len(each) >= FEWEST_CASES}


def drift_of(summary: CaseSummary, drifts: Mapping[int, Drift]) -> Drift | None:
    """That of the class of the case's stream; None where the case has none, or its class too few cases."""
    return drifts.get(duration_class(summary.stream_us.value)) if summary.stream_us is not None else None


def _median(logs: Sequence[float], level: float = 0.95) -> Estimate:
    """The median's antilogarithm, with the interval that the sign test inverts to: between order statistics, whatever the distribution."""
    ordered = sorted(logs)
    tail, below, rank = (1.0 - level) / 2.0, 0.5 ** len(ordered), 0
    while below <= tail:
        rank += 1
        below += math.comb(len(ordered), rank) * 0.5 ** len(ordered)
    if rank == 0:
        return Estimate(math.exp(statistics.median(ordered)), 0.0, math.inf, level)
    return Estimate(math.exp(statistics.median(ordered)), math.exp(ordered[rank - 1]), math.exp(ordered[-rank]), level)
