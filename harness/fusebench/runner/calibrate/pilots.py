"""The pilot of a target: it tries several amounts of work, and finds the one that injects each wanted slowdown.

Time follows rows in waves: more programs take no longer while a multiprocessor is free for them, and then a whole wave longer.  On an H200
5 % more rows took a kernel of 4.6 us over such a limit, and rows added in proportion to that slowed it down by 0.1 to 0.8 % where 0.5 to
5 % were meant.  So a pilot measures several numbers of rows, and only measured numbers are injected.  Nothing is put between two
of them: the time may step anywhere there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from ...schema import Estimate, Injection, Sample
from ...stats.sequential import repeated_interval
from ...timing.pairs import pair_logs
from ..context import MeasuringContext
from .ground_truth import TRUTH_LEVEL_TAIL, mean_us
from .targets import CalibrationTarget, Comparing, comparing, fits, measure_pairs, pairs_at_once

PILOT_REPLICATES = 48
"""Log ratios of equal arms scatter by 0.5 to 1.2 % between replicates at 5 to 30 us on an H200, where this many know a slowdown to 0.07 to
0.17 % (one standard error) and tell 0.5 % from nothing; at 1.4 us, where they scatter by 2 %, they tell 0.6 %."""

WORK_PER_SLOWDOWN = (1, 2, 4, 8)
"""Work that is tried for each slowdown, in multiples of what does where time is proportional to work.  Eight times as much reaches what
small kernels hide: that of 4.6 us became slower by a sixth of what was meant.  Where time is smooth, neighbours a factor of two apart leave
no slowdown between theirs farther than 1.41 from both."""
DIVISOR = 16
"""Triton compiles a kernel apart for integers that this divides: on an H200, 4128 rows of norm_tanh_mul_add/fused_triton@2 took 20 % longer
than 4231."""
FIT = 1.5
"""An amount of work injects a slowdown when its measured slowdown lies within this factor.  Wanted slowdowns lie factors of two and more
apart, and a trial counts under the one nearest to its ground truth; 1.5 instead of 1.41 leaves room for the pilot's noise."""


class Pilot(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a target, and the parameter values that make it slower."""

    time_us: float
    launches: int
    """Device activities of one call; 0 if the timer cannot see them."""
    values: dict[float, int]
    """By slowdown (a share of the time), the value of the target's parameter that injects it; absent where no value does."""


def make_pilot(target: CalibrationTarget, slowdowns: Sequence[float], context: MeasuringContext) -> Pilot | None:
    """The target's time and the values that slow it down, with a warning for each slowdown that none injects.

    None if the target cannot be measured.
    """
    wished = slowdowns if target.key else ()
    tried = tried_values(target, wished, context.device.memory_bytes)
    wanted, samples = _try(target, tried, context)
    if samples is None and tried:
        # An op may refuse some number of rows, or lack the memory for it: the target's equal arms can be measured all the same.
        tried = {}
        wanted, samples = _try(target, tried, context)
    if samples is None:
        return None
    equal, *raised = wanted.pairs
    trim = context.plan.trim
    time_us = mean_us(samples, trim)[equal.old]
    launches = next(sample.kernels for sample in samples if sample.arm == equal.old)
    if target.injection is Injection.DELAY:
        return Pilot(time_us=time_us, launches=launches, values=delays(target, wished, time_us))
    logs = {tried[wanted.nominal[pair.name]]: pair_logs(samples, pair, trim) for pair in raised}
    seen = {value: repeated_interval(taken, TRUTH_LEVEL_TAIL, looks=1) for value, taken in logs.items()}
    values, missing = fitting_values(wished, seen)
    for slowdown, reason in missing.items():
        context.warn(f"{target.name}: {100 * slowdown:.1f} % slower is not injected by more {target.key}: {reason}")
    return Pilot(time_us=time_us, launches=launches, values=values)


def _try(target: CalibrationTarget, tried: Mapping[float, int], context: MeasuringContext) -> tuple[Comparing, list[Sample] | None]:
    """One pair of equal arms and one of each value that is tried: the comparison, and its samples, or None if any failed."""
    wanted = comparing(target, 1, dict.fromkeys(tried, 1), tried)
    samples: list[Sample] = []
    for part in wanted.batches(pairs_at_once(target, tried.values(), context.device.memory_bytes)):
        reply = measure_pairs(target, part.arms, part.pairs, context.pool.native, context, replicates=PILOT_REPLICATES)
        if reply is None:
            return wanted, None
        samples += reply.samples
    return wanted, samples


def tried_values(target: CalibrationTarget, slowdowns: Sequence[float], memory_bytes: int | None) -> dict[float, int]:
    """By share of work added, the values of the target's parameter that its pilot measures: none where rows do not slow it down.

    Every value lies at least one step beyond the one before, so that few rows give as many values as many do.
    """
    if target.injection is not Injection.ROWS or not target.key:
        return {}
    value = last = target.case.params[target.key]
    # Rows that change what is compiled plant something else than more of the same work.
    step = math.gcd(value, DIVISOR)
    tried: dict[float, int] = {}
    for share in sorted({slowdown * times for slowdown in slowdowns for times in WORK_PER_SLOWDOWN}):
        last = max(last + step, value + step * round(share * value / step))
        if fits(target, last, memory_bytes):
            tried[last / value - 1] = last
    return tried


def fitting_values(slowdowns: Sequence[float], seen: Mapping[int, Estimate]) -> tuple[dict[float, int], dict[float, str]]:
    """By slowdown, the value that injects it; and by slowdown without such a value, the reason.

    Of `seen` (by value, new time over old) the nearest as a ratio is taken, if it lies within `FIT` and its interval says that it is slower
    at all.  Of two slowdowns that come to the same value the better fit keeps it.
    """
    slower = {value: change.value - 1 for value, change in seen.items() if change.low > 1}
    tried = f"{len(seen)} values from {min(seen)} to {max(seen)}" if seen else ""
    if not slower:
        reason = f"none of {tried} takes measurably longer" if seen else "nothing larger could be measured"
        return {}, dict.fromkeys(slowdowns, reason)
    nearest = {wanted: min(slower, key=lambda value: _factor(slower[value], wanted)) for wanted in slowdowns}
    found: dict[float, int] = {}
    missing: dict[float, str] = {}
    for wanted in sorted(slowdowns, key=lambda one: _factor(slower[nearest[one]], one)):
        value = nearest[wanted]
        shown = f"of {tried} the nearest, {value}, is {100 * slower[value]:.2f} % slower"
        if _factor(slower[value], wanted) > FIT:
            missing[wanted] = f"{shown}, not within a factor of {FIT:g}"
        elif value in found.values():
            missing[wanted] = f"{shown}, which injects another slowdown that it is nearer to"
        else:
            found[wanted] = value
    return {one: found[one] for one in slowdowns if one in found}, {one: missing[one] for one in slowdowns if one in missing}


def delays(target: CalibrationTarget, slowdowns: Sequence[float], time_us: float) -> dict[float, int]:
    """By slowdown, the delay in nanoseconds that injects it: a wait adds its own duration, whatever precedes it."""
    base = target.case.params[target.key]
    return {slowdown: base + max(1, round(slowdown * time_us * 1e3)) for slowdown in slowdowns}


def _factor(slowdown: float, wanted: float) -> float:
    """How far apart the two are, as a ratio of at least 1."""
    return max(slowdown / wanted, wanted / slowdown)
