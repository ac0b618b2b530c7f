"""The rule that turns a measured change into a verdict, from the change, the kernel's time and its launches alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ...schema import ClassScatter, Estimate, Reference, Run, RunScatter, VerdictKind
from ...stats.paired import describe_change
from ...stats.scatter import LEVEL, at_level, finding_margin, passing_margin
from .call_classes import call_class, duration_class

DEFAULT_MARGIN = 0.02
"""Changes within 2 % pass.  Between three nightlies of 12 placements on three H200s, 95 % intervals of unchanged kernels of one launch were
+-0.9 % from 3 us, +-0.6 % from 10 and +-0.25 % from 50 us (medians): 82 % of 336 comparisons, 99 % of 372 and all of 317 lay within 2 %,
and two beyond."""

DEFAULT_FLOOR_US = 0.1
"""Changes below 0.1 us pass at any share: this is about three ticks of CUPTI's 32 ns clock on the same GPU."""

CPU_MARGIN, CPU_FLOOR_US = 0.10, 1.0
"""The same on a CPU, where other programs share cores, caches and memory: large mistakes show, noise does not.  `ab` has them too."""

SEVERAL_LAUNCHES = 2.0
"""Margin and floor of calls of several launches are this many times as wide: the time between launches scatters with the host and the
driver.  Of 836 comparisons of such calls, unchanged, between the same nightlies, 2 % and 0.1 us would have called 53 faster or slower, the
double 9."""


MORE_REPLICATES = "measure with more replicates"
"""What decides an interval that crosses the slower limit, where the baseline's own time is known."""
PASS_LEVEL = 0.90
"""A pass needs its 90 % interval below the slower limit: a change as large as the margin then passes with a probability of 5 %."""

LOOKS_PASS_LEVEL = 0.94
"""The same where a case may pass at several looks: at first, and after two, four and eight fresh processes.  A change as large as the
margin then passes at any of them with a probability of 4 to 5 %, by the H200's variances and its stored baseline (simulated in
tests/verdict/margins/test_looks.py); with 90 % at each look it would be 8 to 9 %."""

BASELINE_PROCESSES = 8
BASELINE_BOARDS = 2
FRESH_PROCESSES = 8
"""The comparison that margins are made for: a baseline of eight processes on two boards, a run of one process on a third board, and eight
fresh processes for its suspects."""
PASSING = 0.98
"""Share of equal code whose interval the margin holds on both sides without confirmation.  Half of the rest reads faster and passes too."""
LEAST_PASSING = 0.80
"""The same after confirmation, on devices too noisy for the targets."""
FOUND = 0.90
TARGETS = {(False, 1): 0.05, (False, 2): 0.04, (False, 3): 0.03}
"""Slowdowns to find with probability `FOUND` after confirmation, by `call_class`.  They bound the margin of their class from above."""


class Judged(NamedTuple):
    """What the rule says of one change."""

    kind: VerdictKind
    reason: str
    maybe_faster: bool = False
    """Whether a pass leaves open that the kernel is faster beyond the margin: it is not slower, and the other end crosses the limit."""


class MarginRule:
    """A change needs the whole interval beyond the margin, a pass needs all of it below the slower limit; one across that is undecided.

    Margins and intervals come from the scatter between stored runs of the device model where it is known.
    """

    def __init__(
        self, margin: float | None = None, floor_us: float | None = None, *, scatter: RunScatter | None = None, device: str = "cuda"
    ) -> None:
        """
        Args:
            margin: share of the old time (0.03 = 3 %), for calls of one launch; None: from `scatter`, and 2 % where that knows none, on a
                CPU 10 %.
            floor_us: widens a fixed margin for kernels so short that it is less than that; None: 0.1 us, on a CPU 1 us.
            scatter: between stored runs of the device model.
            device: `cuda` or `cpu`.

        Raises:
            ValueError: a margin that is not positive, or a negative floor.
        """
        usual, usual_floor_us = (CPU_MARGIN, CPU_FLOOR_US) if device == "cpu" else (DEFAULT_MARGIN, DEFAULT_FLOOR_US)
        floor_us = usual_floor_us if floor_us is None else floor_us
        if not (margin is None or margin > 0) or not floor_us >= 0:
            raise ValueError(f"margin={margin!r}, floor_us={floor_us!r}: the margin must be positive and the floor not negative")
        self.fixed = margin
        self.margin = usual if margin is None else margin
        self._device = device
        self.floor_us = floor_us
        self.scatter = scatter
        classes = scatter.classes if scatter is not None else ()
        self._classes = {(one.reference, one.several_launches, duration_class(one.low_us)): one for one in classes}
        self._widening: Mapping[tuple[bool, int], float] = {}
        self._confirming = False
        self._margins = {place: evidence_margin(one) for place, one in self._classes.items()}

    def knows(self, run: Run) -> bool:
        """Whether the scatter is that of runs as `run`: of its device model, timer and cache state."""
        known = self.scatter
        if known is None:
            return False
        return (known.device_name, known.timer, known.cache) == (run.environment.device_name, run.timer, run.plan.cache)

    def widened(self, factors: Mapping[tuple[bool, int], float]) -> MarginRule:
        """The same rule for a comparison that scatters more than the stored runs, by these factors per `call_class`."""
        rule = self._copy()
        rule._widening = dict(factors)
        return rule

    def confirming(self) -> MarginRule:
        """The same rule for a first look that others may follow: it is as strict as these."""
        rule = self._copy()
        rule._confirming = True
        return rule

    def _copy(self) -> MarginRule:
        rule = MarginRule(self.fixed, self.floor_us, scatter=self.scatter, device=self._device)
        rule._widening, rule._confirming = self._widening, self._confirming
        return rule

    def widening_of(self, time_us: float, launches: int) -> float:
        """The factor for intervals of such calls, at least 1."""
        return self._widening.get(call_class(time_us, launches), 1.0)

    def scatter_of(self, time_us: float, launches: int, reference: Reference | None) -> ClassScatter | None:
        """The scatter of the class of such calls; None where it is not known."""
        return None if reference is None else self._classes.get((reference, *call_class(time_us, launches)))

    def margin_at(self, time_us: float, launches: int = 1, reference: Reference | None = None) -> float:
        """The margin in force for a call of `time_us` microseconds and so many launches."""
        place = (reference, *call_class(time_us, launches))
        if self.fixed is None and reference is not None and place in self._margins:
            return self._margins[reference, place[1], place[2]]
        return max(self.margin, self.floor_us / time_us) * (SEVERAL_LAUNCHES if launches > 1 else 1.0)

    def judge(
        self, change: Estimate, time_us: float, launches: int = 1, reference: Reference | None = None, *,
        looks: int = 1, remedy: str = MORE_REPLICATES,
    ) -> Judged:  # fmt: skip
        """The verdict and its sentence: regression above 1 + margin, improvement below 1 / (1 + margin), else pass below 1 + margin.

        An interval across 1 + margin is undecided.  One across 1 / (1 + margin) alone passes: pass and improvement both say "not slower".

        Args:
            change: new time over old, 1.02 being 2 % slower.
            time_us: the kernel's time in the new run, in microseconds, for limits that are absolute.
            launches: launches of one call, the fewer of both runs; 0 if the timer sees none.
            reference: what `change` is relative to, where its interval is from the scatter between runs; None for any other change.
            looks: at which the time could have passed (`Measurement.looks`).
            remedy: what would decide an interval that crosses 1 + margin.
        """
        margin = self.margin_at(time_us, launches, reference)
        slow, fast = 1.0 + margin, 1.0 / (1.0 + margin)
        within = f"{100 * margin:.1f} % margin"
        seen = describe_change(change)
        if change.low > slow:
            return Judged(VerdictKind.REGRESSION, f"{seen}: slower beyond the {within}")
        if change.high < fast:
            return Judged(VerdictKind.IMPROVEMENT, f"{seen}: faster beyond the {within}")
        if self.scatter_of(time_us, launches, reference) is not None:
            level = LOOKS_PASS_LEVEL if looks > 1 or self._confirming else PASS_LEVEL
            change = at_level(change, level)
            seen = f"{describe_change(change)} ({100 * level:.0f} %)"
        if change.high > slow:
            return Judged(VerdictKind.UNDECIDED, f"{seen}: the interval crosses the {within}; {remedy}")
        if change.low < fast:
            return Judged(VerdictKind.PASS, f"{seen}: not slower; the interval crosses the {within} to the faster side", True)
        return Judged(VerdictKind.PASS, f"{seen}: inside the {within}")


def evidence_margin(scatter: ClassScatter) -> float:
    """The margin of a class of calls: the smallest inside which `PASSING` of equal code lies in a run of one process.

    It is at most the one beyond which the class's target slowdown is still found with `FOUND` after confirmation.  Where both cannot be
    had, fewer kernels pass at first, and more are remeasured.
    """
    board = (scatter.board or 0.0) ** 2 * (1 + 1 / BASELINE_BOARDS)
    process = (scatter.process or 0.0) ** 2 + scatter.placement**2
    first = math.sqrt(board + process * (1 + 1 / BASELINE_PROCESSES))
    confirmed = math.sqrt(board + process * (1 / FRESH_PROCESSES + 1 / BASELINE_PROCESSES))
    margin = passing_margin(first, PASSING, PASS_LEVEL)
    target = TARGETS.get((scatter.several_launches, duration_class(scatter.low_us)))
    if target is not None:
        wanted = finding_margin(math.log1p(target), confirmed, FOUND, LEVEL)
        margin = min(margin, max(wanted, passing_margin(confirmed, LEAST_PASSING, PASS_LEVEL)))
    return math.expm1(margin)
