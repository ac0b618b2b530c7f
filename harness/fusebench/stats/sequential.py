"""A sequential test of a change: three outcomes, one look after each batch of replicates, error rates kept over all looks.

Every look tests theta, the log of head time over base time, around which replicates scatter symmetrically:

* `regression`: theta <= log(1 + margin) is rejected.  Called wrongly with probability at most `alarm_level` per comparison, over all
  looks together, whatever the true change inside the margin; at no change at all it is far rarer.
* `improvement`: the mirror image, at the same level.
* `pass`: both theta >= log(1 + margin) and theta <= -log(1 + margin) are rejected (two one-sided tests), each at `pass_level` over all
  looks: a change as large as the margin is passed with at most that probability.
* otherwise another batch, and `undecided` after the last.

The level is split evenly over the looks (Bonferroni): p = min over looks of (p at the look) x (number of looks). With the default looks
this takes 6 % more replicates than boundaries from the looks' joint normal distribution (z = 3.144 at each look instead of 3.054). In
return it needs no such assumption: it is exact for every symmetric distribution, however heavy its tails, and the intervals stay valid for
any reason to stop (repeated confidence intervals: Jennison & Turnbull, J. R. Statist. Soc. B 51 (1989) 305).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from ..schema import Estimate, Finding, VerdictKind
from .paired import describe_change
from .signed_rank import Floats, bounds, center, p_above, p_below, walsh_averages

WILCOXON_EFFICIENCY = 3 / math.pi
"""Wilcoxon's efficiency relative to Student's t for normal values; for every symmetric distribution it is at least 0.864
(Hodges & Lehmann 1956), and above 1 for heavy tails."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The looks, the error levels and the margin of a sequential test.

    The defaults follow from an H200's scatter between placements (sd 0.35-0.56 % at 12 us, 0.8-1.2 % at 2.8 us). A margin of 0.4 % leaves
    0.6 % to see of an injected 1 %: `detectable_change(0.0056, 12.0)` is 0.68 %, and 0.84 % at a scatter of 0.88 %, the most seen at 24 us.
    The floor is one tick of the 32 ns clock, 1.1 % at 3 us.
    """

    looks: tuple[int, ...] = (12, 18, 28, 42, 64, 96)
    """Numbers of replicates after which to look. Each is 1.5 times the one before, because precision grows with the square root. Fewer than
    11 can never reach 0.083 % in one look (2**-11); 96 cost about 2 s of GPU time at six arms."""
    alarm_level: float = 0.005
    """Chance of a false finding of a change in one direction, over all looks, before confirmation."""
    pass_level: float = 0.05
    """Chance to pass a change as large as the margin, over all looks."""
    margin: float = 0.004
    """Share of the old time that a change may reach in either direction and still pass."""
    floor_us: float = 0.032
    """The margin is never less than this many microseconds."""

    def __post_init__(self) -> None:
        shares = (self.alarm_level, self.pass_level)
        if not self.looks or list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"looks={self.looks!r}: expected ascending numbers of replicates, at least one")
        if not all(0 < share < 0.5 for share in shares) or not (0 < self.margin < math.inf and 0 <= self.floor_us < math.inf):
            raise ValueError(f"{self!r}: levels lie between 0 and 0.5, the margin is positive, the floor not negative")
        if self.looks[-1] < math.log2(len(self.looks) / min(shares)):
            raise ValueError(
                f"{self.looks[-1]} replicates in {len(self.looks)} looks can never reach a level of {min(shares):g}: 2**-replicates must "
                f"be at most {min(shares) / len(self.looks):.2g}; plan more replicates or fewer looks"
            )

    def margin_at(self, time_us: float) -> float:
        """The margin in force for a kernel of `time_us` microseconds, as a share of the old time."""
        if not time_us > 0:
            raise ValueError(f"time_us={time_us!r}: expected a positive duration in microseconds")
        return max(self.margin, self.floor_us / time_us)


def judge(logs: Sequence[float] | Floats, time_us: float, plan: Plan | None = None) -> Finding:
    """The finding from the log ratios (head over base) of all replicates so far, in the order of measurement.

    A pure function of that order: it repeats every look of the plan and stops at the first decision. So a decision stays, and replicates
    between two looks wait for the next look.

    Args:
        logs: one per replicate, natural logarithm, finite.
        time_us: the kernel's time in microseconds, for the margin's floor.
        plan: looks, levels and margin; the default plan where None.
    """
    plan = plan or Plan()
    margin = plan.margin_at(time_us)
    limit, looks = math.log1p(margin), len(plan.looks)
    slower = faster = 1.0
    taken = 0
    walsh: Floats | None = None
    for look in plan.looks:
        if look > len(logs):
            break
        taken = look
        walsh = walsh_averages(logs[:look])
        slower = min(slower, looks * p_above(walsh, look, limit))
        faster = min(faster, looks * p_below(walsh, look, -limit))
        inside = looks * max(p_below(walsh, look, limit), p_above(walsh, look, -limit))
        kind = _decision(slower, faster, inside, plan)
        if kind is not None:
            level = plan.pass_level if kind is VerdictKind.PASS else plan.alarm_level
            change = _estimate(walsh, look, level, looks)
            return _finding(kind, change, (slower, faster), margin=margin, taken=look, upcoming=None)
    upcoming = next((look for look in plan.looks if look > len(logs)), None)
    change = _estimate(walsh, taken, plan.alarm_level, looks) if walsh is not None else _unbounded(logs, plan)
    return _finding(VerdictKind.UNDECIDED, change, (slower, faster), margin=margin, taken=taken, upcoming=upcoming)


def repeated_interval(logs: Sequence[float] | Floats, tail: float, looks: int) -> Estimate:
    """Head time over base time, with an interval that misses at each end with probability at most `tail`, at any of `looks` looks and for
    any reason to stop."""
    return _estimate(walsh_averages(logs), len(logs), tail, looks)


def detectable_change(
    scatter: float, time_us: float, plan: Plan | None = None, *, power: float = 0.95, replicates: int | None = None
) -> float:
    """The smallest slowdown, as a share, that is found with probability `power` by the last look, for normal scatter.

    margin + (z(alarm_level / looks) + z(power)) x scatter / sqrt(efficiency x replicates), added as logarithms.

    Args:
        scatter: standard deviation of the log ratio between placements.
        time_us: the kernel's time in microseconds.
        replicates: number of replicates; those of the last look unless given.
    """
    plan = plan or Plan()
    count = plan.looks[-1] if replicates is None else replicates
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - plan.alarm_level / len(plan.looks)) + normal.inv_cdf(power)
    return math.expm1(math.log1p(plan.margin_at(time_us)) + quantiles * scatter / math.sqrt(WILCOXON_EFFICIENCY * count))


def replicates_needed(change: float, scatter: float, time_us: float, plan: Plan | None = None, *, power: float = 0.95) -> int | None:
    """Replicates after which a slowdown of `change` (a share) is found with probability `power`; None if the margin hides it."""
    plan = plan or Plan()
    gap = math.log1p(change) - math.log1p(plan.margin_at(time_us))
    if gap <= 0:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - plan.alarm_level / len(plan.looks)) + normal.inv_cdf(power)
    return math.ceil((quantiles * scatter / gap) ** 2 / WILCOXON_EFFICIENCY)


def _decision(slower: float, faster: float, inside: float, plan: Plan) -> VerdictKind | None:
    if slower <= plan.alarm_level:
        return VerdictKind.REGRESSION
    if faster <= plan.alarm_level:
        return VerdictKind.IMPROVEMENT
    return VerdictKind.PASS if inside <= plan.pass_level else None


def _estimate(walsh: Floats, count: int, tail: float, looks: int) -> Estimate:
    low, high = bounds(walsh, count, tail / looks)
    return Estimate(math.exp(center(walsh)), math.exp(low), math.exp(high), 1 - 2 * tail)


def _unbounded(logs: Sequence[float] | Floats, plan: Plan) -> Estimate:
    """The estimate before the first look: a point (NaN without replicates) and no interval."""
    value = math.exp(center(walsh_averages(logs))) if len(logs) else math.nan
    return Estimate(value, 0.0, math.inf, 1 - 2 * plan.alarm_level)


def _finding(
    kind: VerdictKind, change: Estimate, p_values: tuple[float, float], *, margin: float, taken: int, upcoming: int | None
) -> Finding:
    what = {
        VerdictKind.REGRESSION: "slower beyond",
        VerdictKind.IMPROVEMENT: "faster beyond",
        VerdictKind.PASS: "inside",
        VerdictKind.UNDECIDED: "neither clear of nor inside",
    }[kind]
    bounded = change.low > 0.0 and change.high < math.inf
    seen = f"{describe_change(change, 2)} at {100 * change.level:.0f} %" if bounded else "no interval yet"
    more = f"; look again after {upcoming}" if upcoming else "; the plan's last look is taken" if kind is VerdictKind.UNDECIDED else ""
    return Finding(
        kind=kind,
        change=change,
        p_slower=min(p_values[0], 1.0),
        p_faster=min(p_values[1], 1.0),
        margin=margin,
        replicates=taken,
        next_look=upcoming,
        reason=f"{seen}: {what} the {100 * margin:.2f} % margin after {taken} replicates{more}",
    )
