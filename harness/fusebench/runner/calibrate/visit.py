"""One visit of a calibration to one target: one process measures and judges its pairs, fresh processes confirm the findings.

A calibration keeps whole visits only. A finding without its confirmation would count as none, and keeping only the A/A comparisons without
findings would select by result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...schema import Case, Injection, InjectionPlace, SamplingPlan
from ...stats.sequential import Plan
from ...timing.pairs import Compared, Pair, pair_logs
from ...verdict.conclusion import PROCESSES, placements_for
from ..context import MeasuringContext
from ..workers.interference import Worker
from .ground_truth import GroundTruths
from .pilots import Pilot
from .targets import CalibrationTarget, comparing, measure_pairs, pairs_at_once

CONFIRMED_AT_ONCE = 12
"""Pairs in one measurement of a fresh process, at most."""


class CalibrationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure, and how."""

    plan: SamplingPlan
    """Rounds, cache state and trim as for `ab`; its replicates measure the ground truth of an injected slowdown in each fresh process."""
    looks: Plan
    slowdowns: tuple[float, ...]
    passes: int
    """Measurements of every target."""
    identical: int
    """Pairs of identical arms in each."""
    injected: int = 1
    """Pairs of each slowdown in each, at least."""
    trials: int = 0
    """Trials of each slowdown in each class of calls after all passes: a visit holds more than `injected` pairs if that needs more."""
    processes: int = PROCESSES
    pilots_ahead: bool = True
    """Whether every target has its pilot before the first visit, which tells how many pairs a class of calls needs.  A budget has no room
    for pilots of targets that it may never visit: each then comes before the target's first visit, and `trials` is not kept."""


class Visit(NamedTuple):
    """A target in one pass."""

    pass_number: int
    place: int
    """The target's place among all targets."""
    target: CalibrationTarget
    pilot: Pilot | None
    """None until the target's first visit, where pilots are not made ahead."""
    injected: Mapping[float, int]
    """By slowdown, the number of its pairs to measure."""

    @property
    def case(self) -> Case:
        return self.target.case

    @property
    def shape(self) -> str:
        return f"{self.target.kernel}, {self.pilot.time_us:.1f} us" if self.pilot is not None else self.target.kernel


class Pending(msgspec.Struct, kw_only=True):
    """A comparison, and the log ratios from fresh processes where it claims a change."""

    pass_number: int
    place: InjectionPlace
    compared: Compared
    seconds: float
    by_process: list[list[float]] = []


class VisitWork:
    """The work of one visit; `found` and `ground_truths` are whole once it is over."""

    def __init__(
        self, visit: Visit, options: CalibrationOptions, context: MeasuringContext, fresh: Sequence[Worker], *, first: bool
    ) -> None:
        """`first`: whether fresh processes also measure each injected slowdown by itself, for its ground truth."""
        self.found: list[Pending] = []
        self.ground_truths = GroundTruths() if first else None
        self._visit, self._options, self._context, self._fresh = visit, options, context, fresh
        self._values: Mapping[float, int] = visit.pilot.values if visit.pilot is not None else {}

    def measure(self, seconds: float | None) -> None:
        """Measure every pair until it is decided, and its findings again in every fresh process."""
        self.found = self._compare() if self._visit.pilot is not None else []
        if self.found:
            self._confirm()

    def _compare(self) -> list[Pending]:
        """The first stage: every pair measured until it is decided."""
        visit, target, context = self._visit, self._visit.target, self._context
        pending: list[Pending] = []
        values = self._values
        wanted = comparing(target, self._options.identical, visit.injected, values)
        for part in wanted.batches(pairs_at_once(target, values.values(), context.device.memory_bytes)):
            reply = measure_pairs(target, part.arms, part.pairs, context.pool.native, context, looks=self._options.looks)
            if reply is None:
                continue
            pending += [
                Pending(
                    pass_number=visit.pass_number,
                    place=_place(target, part.nominal[name]),
                    compared=compared,
                    seconds=reply.seconds / len(reply.compared),
                )
                for name, compared in reply.compared.items()
            ]
        return pending

    def _confirm(self) -> None:
        """The second stage: every claimed change again in every fresh process, and for `ground_truths` each injected slowdown by itself."""
        visit, fresh = self._visit, self._fresh
        claims = [one for one in self.found if one.compared.finding.claims_change]
        # Long ones together: pairs of one group end with its longest.
        claims.sort(key=lambda one: placements_for(one.compared.finding))
        values = self._values
        # Beside the first group every injected slowdown and a pair of equal arms are measured by themselves.
        room = pairs_at_once(visit.target, values.values(), self._context.device.memory_bytes) - len(values) - 1
        size = max(1, min(CONFIRMED_AT_ONCE, room))
        groups = [claims[start : start + size] for start in range(0, len(claims), size)]
        if self.ground_truths is not None and not groups:
            groups = [[]]
        self._context.reporter.note(f"{len(claims)} findings, to be confirmed by {len(fresh)} fresh processes")
        for worker in fresh:
            for number, group in enumerate(groups):
                self._confirm_in(worker, group, self.ground_truths if number == 0 else None)

    def _confirm_in(self, worker: Worker, claims: Sequence[Pending], found: GroundTruths | None) -> None:
        """Measure the claims again in one fresh process, each in a pair of its own; with `found`, each injected slowdown by itself."""
        target, values, plan = self._visit.target, self._values, self._options.plan
        nominals = [one.place.nominal for one in claims]
        separate = [] if found is None else [0.0, *values]
        counts = Counter([*nominals, *separate])
        wanted = comparing(target, counts.pop(0.0, 0), counts, values)
        by_nominal: dict[float, list[Pair]] = defaultdict(list)
        for pair in wanted.pairs:
            by_nominal[wanted.nominal[pair.name]].append(pair)
        again = [(by_nominal[nominal].pop(), one) for nominal, one in zip(nominals, claims, strict=True)]
        by_itself = [by_nominal[nominal].pop() for nominal in separate]
        lengths = {pair.name: placements_for(one.compared.finding) for pair, one in again}
        lengths.update({pair.name: plan.replicates for pair in by_itself})
        reply = measure_pairs(target, wanted.arms, wanted.pairs, worker, self._context, lengths=lengths)
        if reply is None:
            return
        for pair, one in again:
            one.by_process.append(pair_logs(reply.samples, pair, plan.trim))
        if found is not None:
            places = [_place(target, wanted.nominal[pair.name]) for pair in by_itself]
            found.add(reply.samples, by_itself, places, plan.trim)


def _place(target: CalibrationTarget, nominal: float) -> InjectionPlace:
    injection = target.injection if nominal else Injection.IDENTICAL
    return InjectionPlace(0, target.case.key, target.kernel, injection, nominal)
