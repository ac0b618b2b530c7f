"""Yardsticks: the reference times of kernels when two runs are compared, and the drift of the yardsticks themselves.

A ratio to a yardstick of the same rounds cancels clocks and machine differences.  One case's streaming yardstick scatters between runs
nearly as much as a kernel does, and a ratio to it has the scatter of both.  A difference that two runs have for all calls alike (a clock, a
board, a driver) shows in the streaming yardsticks of all cases, and their median hardly scatters.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from ..schema import CHANGES, CaseSummary, Estimate, Run, VerdictKind
from ..stats.paired import describe_change
from .call_classes import duration_class
from .comparability import case_differences

FEWEST_CASES = 9
"""With fewer cases the median is known less well than one case's yardstick: of eight, the smallest and the largest are its 95 % bounds, of
nine the second of either side.  Of unchanged kernels of 3 to 10 us, on eight cases drawn from three nightlies, 60 % passed by the median
and 62 % by their own yardsticks; on nine, 79 % and 61 %."""


class Basis(StrEnum):
    """The basis of a verdict."""

    RATIO = "ratio"
    """Time relative to a yardstick of the same run, new over old."""
    RAW = "raw"
    """Raw time, new over old, under an equal fingerprint."""
    NONE = "none"
    """No times were compared."""


class Yardstick(NamedTuple):
    """One yardstick that both runs timed."""

    name: str
    change: Estimate
    """The kernel's time relative to it, new over old."""
    under_test: bool = False
    """Whether it is itself a kernel under test, which may have changed for the same reason as the judged one."""


class SpeedFinding(NamedTuple):
    """The verdict on one kernel's times, before its code and accuracy are known."""

    kind: VerdictKind
    reason: str
    change: Estimate | None
    """New over old; None if no times were compared."""
    basis: Basis
    yardstick_slower_too: bool = False
    """Whether the kernel became slower, and so did the yardstick that it is compared with."""


class Drift(msgspec.Struct, frozen=True):
    """How the streaming yardsticks of one class of duration changed between two runs."""

    factor: Estimate
    """Time in the new run over that in the old one."""
    cases: int


def yardstick_drifts(run: Run, baseline: Run) -> dict[int, Drift]:
    """The drift from `baseline` to `run`, by class of duration of the yardstick in `run`; classes below `FEWEST_CASES` are left out.

    A case counts where both runs timed its streaming yardstick in the cache state of its label, with the same parameters.  Cases that
    repeat another case's work count once.
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
    """The drift of the class of the case's yardstick; None if the case has no yardstick, or its class too few cases."""
    return drifts.get(duration_class(summary.stream_us.value)) if summary.stream_us is not None else None


def _median(logs: Sequence[float], level: float = 0.95) -> Estimate:
    """The median's antilogarithm.  Its interval inverts the sign test: it lies between order statistics, whatever the distribution."""
    ordered = sorted(logs)
    tail, below, rank = (1.0 - level) / 2.0, 0.5 ** len(ordered), 0
    while below <= tail:
        rank += 1
        below += math.comb(len(ordered), rank) * 0.5 ** len(ordered)
    if rank == 0:
        return Estimate(math.exp(statistics.median(ordered)), 0.0, math.inf, level)
    return Estimate(math.exp(statistics.median(ordered)), math.exp(ordered[rank - 1]), math.exp(ordered[-rank]), level)


def relative_finding(
    first: Yardstick, others: Iterable[Yardstick], raw: Estimate, judge: Callable[[Estimate], tuple[VerdictKind, str]]
) -> SpeedFinding:
    """The finding relative to the first yardstick, unless another yardstick shows that the kernel is not the cause.

    Args:
        first: the most trusted yardstick.
        others: the rest, the most trusted first; they are computed only where they are needed.
        raw: the kernel's raw time, new over old.
        judge: the margin rule for this kernel.
    """
    change = first.change
    kind, reason = judge(change)
    reason = f"relative to {first.name}: {reason}"
    moved = kind in CHANGES
    slower = kind in (VerdictKind.PASS, VerdictKind.IMPROVEMENT) and judge(raw)[0] is VerdictKind.REGRESSION
    asked = list(others) if moved or slower else []
    if moved:
        # Another torch may have changed the yardstick, or something may have disturbed the rounds of this case alone.
        for name, versus, under_test in asked:
            if judge(versus)[0] is not VerdictKind.PASS:
                continue
            unchanged = f"relative to {name} {describe_change(versus)}: unchanged"
            if under_test and kind is VerdictKind.REGRESSION:
                why = f"{unchanged}, so either {first.name} became faster or that kernel slower as well; find what they share ({reason})"
                return SpeedFinding(VerdictKind.UNDECIDED, why, versus, Basis.RATIO, yardstick_slower_too=True)
            return SpeedFinding(VerdictKind.PASS, f"{unchanged}, so what moved is not this kernel ({reason})", versus, Basis.RATIO)
    if slower:
        # The others scatter more than the first, so they count only where raw times moved as well.
        for name, versus, _ in asked:
            if judge(versus)[0] is VerdictKind.REGRESSION:
                both = f"relative to {name} {describe_change(versus)}, in raw time {describe_change(raw)}: slower, and {first.name} with it"
                why = f"{both}; find what they share ({reason})"
                # The change stays the one from the first yardstick: the noise floor is made of such changes.
                return SpeedFinding(VerdictKind.UNDECIDED, why, change, Basis.RATIO, yardstick_slower_too=True)
    return SpeedFinding(kind, reason, change, Basis.RATIO)
