"""One visit of a calibration to one subject: its pairs measured and judged in one process, its findings held against fresh ones.

Whole visits are what a calibration keeps.  A finding without its confirmation would be counted as none, and equal kernels without the
findings beside them would be a choice by result.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...device import Device, EnvironmentMonitor
from ...schema import Sample, SamplingPlan
from ...stats.confirmation import PROCESSES, needs_confirmation, placements_for
from ...stats.injection import Injection, Place
from ...stats.sequential import Plan, repeated_interval
from ...timing.coldness import require_emptied
from ...timing.pairs import Compared, Pair, pair_logs
from ..cold_label import label_refused
from ..reporter import Reporter
from ..workers.interference import Worker, measure_with_retry
from ..workers.protocol import Failure, Measured, MeasureTask
from .ground_truth import TRUTH_LEVEL_TAIL, GroundTruths, mean_us
from .pilots import Pilot, delays, fitting_values, tried_values
from .targets import CalibrationTarget, Comparing, comparing, pairs_at_once

PILOT_REPLICATES = 48
"""Log ratios of equal arms scatter by 0.5 to 1.2 % between replicates at 5 to 30 us on an H200, where this many know a slowdown to 0.07 to
0.17 % (one standard error) and tell 0.5 % from nothing; at 1.4 us, where they scatter by 2 %, 0.6 % is the least that is told."""
CONFIRMED_AT_ONCE = 12
"""Pairs in one measurement of a fresh process, at most."""


class CalibrationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure, and how."""

    plan: SamplingPlan
    """Rounds, cache state and trim are those of `ab`; its replicates are those that measure a planting's truth in each fresh process."""
    looks: Plan
    slowdowns: tuple[float, ...]
    passes: int
    """Measurements of every subject."""
    identical: int
    """Pairs of identical arms in each."""
    planted: int = 1
    """Pairs of each slowdown in each, at least."""
    trials: int = 0
    """Of each slowdown in each class of calls, when all passes are over: visits hold more than `planted` pairs where it takes more."""
    processes: int = PROCESSES
    timer: str = "auto"
    budget_s: float | None = None
    """Seconds that the whole may take; subjects whose findings could not be confirmed within it are left out."""


class Visit(NamedTuple):
    pass_number: int
    place: int
    """Of the subject among all."""
    subject: CalibrationTarget
    pilot: Pilot
    planted: Mapping[float, int]
    """By slowdown, how many pairs of it are measured."""


class Pending(msgspec.Struct, kw_only=True):
    """A comparison, and what fresh processes measured of it where it claims a change."""

    pass_number: int
    place: Place
    compared: Compared
    seconds: float
    by_process: list[list[float]] = []


class Visiting:
    """Measures subjects on one device."""

    def __init__(
        self, device: Device, options: CalibrationOptions, monitor: EnvironmentMonitor, reporter: Reporter, warn: Callable[[str], None]
    ) -> None:
        self.device, self.options, self.reporter = device, options, reporter
        self._monitor, self._warn = monitor, warn
        self.timer = options.timer
        """That of the last measurement."""

    def pilot(self, subject: CalibrationTarget, worker: Worker) -> Pilot | None:
        """What the subject takes and what makes it slower, with a warning for each slowdown that nothing plants; None where it cannot be
        measured."""
        slowdowns = self.options.slowdowns if subject.key else ()
        tried = tried_values(subject, slowdowns, self.device.memory_bytes)
        wanted, samples = self._try(subject, tried, worker)
        if samples is None and tried:
            # An op may refuse some number of rows, or lack the memory for it: the subject's equal arms can be measured all the same.
            tried = {}
            wanted, samples = self._try(subject, tried, worker)
        if samples is None:
            return None
        equal, *raised = wanted.pairs
        trim = self.options.plan.trim
        time_us = mean_us(samples, trim)[equal.old]
        launches = next(sample.kernels for sample in samples if sample.arm == equal.old)
        if subject.planting is Injection.DELAY:
            return Pilot(time_us=time_us, launches=launches, values=delays(subject, slowdowns, time_us))
        logs = {tried[wanted.nominal[pair.name]]: pair_logs(samples, pair, trim) for pair in raised}
        seen = {value: repeated_interval(taken, TRUTH_LEVEL_TAIL, looks=1) for value, taken in logs.items()}
        values, missing = fitting_values(slowdowns, seen)
        for slowdown, reason in missing.items():
            self._warn(f"{subject.name}: {slowdown:.1%} slower is not planted by more {subject.key}: {reason}")
        return Pilot(time_us=time_us, launches=launches, values=values)

    def _try(self, subject: CalibrationTarget, tried: Mapping[float, int], worker: Worker) -> tuple[Comparing, list[Sample] | None]:
        """One pair of equal arms and one of each value that is tried: what was compared, and its samples, or None where any failed."""
        wanted = comparing(subject, 1, dict.fromkeys(tried, 1), tried)
        samples: list[Sample] = []
        for part in wanted.batches(pairs_at_once(subject, tried.values(), self.device.memory_bytes)):
            reply = self._ask(subject, part.arms, part.pairs, worker, replicates=PILOT_REPLICATES)
            if reply is None:
                return wanted, None
            samples += reply.samples
        return wanted, samples

    def compare(self, visit: Visit, worker: Worker) -> list[Pending]:
        """The first stage: every pair measured until it is decided."""
        subject = visit.subject
        pending: list[Pending] = []
        values = visit.pilot.values
        wanted = comparing(subject, self.options.identical, visit.planted, values)
        for part in wanted.batches(pairs_at_once(subject, values.values(), self.device.memory_bytes)):
            reply = self._ask(subject, part.arms, part.pairs, worker, looks=self.options.looks)
            if reply is None:
                continue
            pending += [
                Pending(
                    pass_number=visit.pass_number,
                    place=self._place(subject, part.nominal[name]),
                    compared=compared,
                    seconds=reply.seconds / len(reply.compared),
                )
                for name, compared in reply.compared.items()
            ]
        return pending

    def confirm(self, visit: Visit, pending: Sequence[Pending], fresh: Sequence[Worker], found: GroundTruths | None) -> None:
        """The second stage: what claims a change again in every fresh process; `found`, unless None, takes in each planting by itself."""
        claims = [one for one in pending if needs_confirmation(one.compared.finding)]
        # Long ones together: what is measured beside them ends with them.
        claims.sort(key=lambda one: placements_for(one.compared.finding))
        values = visit.pilot.values
        # Beside the first group every planting and a pair of equal arms are measured by themselves.
        room = pairs_at_once(visit.subject, values.values(), self.device.memory_bytes) - len(values) - 1
        size = max(1, min(CONFIRMED_AT_ONCE, room))
        groups = [claims[start : start + size] for start in range(0, len(claims), size)]
        if found is not None and not groups:
            groups = [[]]
        self.reporter.note(f"{len(claims)} findings, held against {len(fresh)} fresh processes")
        for worker in fresh:
            for number, group in enumerate(groups):
                self._confirm(visit, group, worker, found if number == 0 else None)

    def _confirm(self, visit: Visit, claims: Sequence[Pending], worker: Worker, found: GroundTruths | None) -> None:
        """Measure the claims again in one fresh process, each in a pair of its own, and, with `found`, each planting by itself."""
        subject = visit.subject
        nominals = [one.place.nominal for one in claims]
        truths = [] if found is None else [0.0, *visit.pilot.values]
        counts = Counter([*nominals, *truths])
        wanted = comparing(subject, counts.pop(0.0, 0), counts, visit.pilot.values)
        by_nominal: dict[float, list[Pair]] = defaultdict(list)
        for pair in wanted.pairs:
            by_nominal[wanted.nominal[pair.name]].append(pair)
        again = [(by_nominal[nominal].pop(), one) for nominal, one in zip(nominals, claims, strict=True)]
        by_itself = [by_nominal[nominal].pop() for nominal in truths]
        lengths = {pair.name: placements_for(one.compared.finding) for pair, one in again}
        lengths.update({pair.name: self.options.plan.replicates for pair in by_itself})
        reply = self._ask(subject, wanted.arms, wanted.pairs, worker, lengths=lengths)
        if reply is None:
            return
        for pair, one in again:
            one.by_process.append(pair_logs(reply.samples, pair, self.options.plan.trim))
        if found is not None:
            places = [self._place(subject, wanted.nominal[pair.name]) for pair in by_itself]
            found.add(reply.samples, by_itself, places, self.options.plan.trim)

    def _ask(
        self,
        subject: CalibrationTarget,
        arms: Sequence[Any],
        pairs: Sequence[Pair],
        worker: Worker,
        *,
        replicates: int = 2,
        looks: Plan | None = None,
        lengths: dict[str, int] | None = None,
    ) -> Measured | None:
        """The measurement, or None where the subject failed or was not cold, which is kept as a warning."""
        task = MeasureTask(
            case=subject.case,
            kernels=(subject.kernel,),
            baseline=subject.kernel,
            plan=msgspec.structs.replace(self.options.plan, replicates=replicates),
            timer=self.options.timer,
            seed=random.SystemRandom().randrange(2**31),
            extra_arms=tuple(arms),
            extra_alone=True,
            pairs=tuple(pairs),
            looks=looks,
            lengths=lengths,
        )
        reply = measure_with_retry(
            task,
            worker,
            self._monitor,
            self.device,
            on_progress=lambda progress: self.reporter.step(progress.text, progress.done, progress.total),
            warn=self._warn,
        )
        if isinstance(reply, Failure):
            self._warn(f"{subject.name} is left out where it failed: {reply.reason}")
            return None
        require_emptied(reply.coldness)
        if refused := label_refused(reply, self.options.plan.trim):
            self._warn(f"{subject.name} is left out where its times are labelled cold and are not: {refused}")
            return None
        self.timer = reply.timer
        return reply

    def _place(self, subject: CalibrationTarget, nominal: float) -> Place:
        planting = subject.planting if nominal else Injection.IDENTICAL
        return Place(0, subject.case.key, subject.kernel, planting, nominal)
