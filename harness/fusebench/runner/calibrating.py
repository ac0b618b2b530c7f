"""Calibration: comparisons whose answer is known, put through the whole pipeline that `ab` uses.

Three stages.  A pilot finds what planted work does to each subject's time.  Then every subject is measured in passes, each of many pairs
with arms of their own, judged while they are being measured.  Last, fresh processes confirm what was found, as they do for `ab` (the same
five serve all findings: each is fresh to every first finding), and measure each planting with a fixed number of replicates: its truth,
and the components of variance.

Confirmation goes subject by subject through all processes, so that a calibration which is cut short there keeps whole subjects.  A subject
that was not reached is left out with everything found on it: an unconfirmed finding would be counted as none, and equal kernels without
the findings beside them would be a choice by result.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..device import Device, EnvironmentMonitor, environment_of
from ..errors import DeviceUnfitError
from ..schema import SamplingPlan, VerdictKind
from ..stats.confirmation import PROCESSES, combined_p, conclude, confirm, needs_confirmation, placements_for
from ..stats.fdr import DEFAULT_RATE, select
from ..stats.planting import Place, PlantedTrial, Planting, Truth
from ..stats.sequential import Finding, Plan
from ..store.calibrations import CaseComponents
from ..timing.coldness import require_emptied
from ..timing.pairs import Compared, Pair, pair_logs
from .checking import Workers
from .cold_label import label_refused
from .messages import Failure, Measured, MeasureTask
from .reporter import Reporter
from .subjects import PILOT_SHARE, Pilot, Subject, comparing, pairs_at_once, pilot_of
from .truths import Truths, mean_us
from .undisturbed import Worker, measure_undisturbed

PILOT_REPLICATES = 24
PASSES_SHARE = 0.5
"""Share of the budget by which all passes should have ended: confirming what they find takes about as long as they do."""
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
    """Pairs of each slowdown in each."""
    processes: int = PROCESSES
    timer: str = "auto"
    budget_s: float | None = None
    """Seconds that the whole may take; subjects whose findings could not be confirmed within it are left out."""


class _Pending(msgspec.Struct, kw_only=True):
    """A comparison that awaits its confirmation."""

    subject: int
    pass_number: int
    place: Place
    compared: Compared
    launches: int
    seconds: float
    by_process: list[list[float]] = []


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one calibration adds to the record, as session 0 of it: it gets its number when it is joined to others."""

    trials: tuple[PlantedTrial, ...]
    truths: tuple[Truth, ...]
    components: tuple[CaseComponents, ...]
    warnings: tuple[str, ...]
    timer: str
    created: str
    seconds: float
    complete: bool
    """Whether all passes were made and all subjects confirmed."""


class Calibrating:
    """One calibration of one device."""

    def __init__(self, device: Device, project_root: Path, options: CalibrationOptions, reporter: Reporter) -> None:
        self.device, self.options, self.reporter = device, options, reporter
        self.environment = environment_of(device, project_root)
        self._monitor = EnvironmentMonitor(device)
        self._warnings: list[str] = []
        self._timer = options.timer
        self._created = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self, subjects: Sequence[Subject], workers: Workers) -> Found:
        """Measure everything.

        Raises:
            DeviceUnfitError: the device was touched again and again, its timer lost records, or nothing could be measured.
        """
        began = time.monotonic()
        self.reporter.begin(len(subjects) * self.options.passes)
        try:
            with self._monitor:
                pilots = self._pilots(subjects, workers)
                pending, passes = self._passes(subjects, pilots, workers, began)
                if not pending:
                    raise DeviceUnfitError(f"nothing could be measured on {self.device}: {'; '.join(self._warnings) or 'no subject'}")
                confirmed = self._fresh_processes(subjects, pilots, pending, workers, began)
        finally:
            self.reporter.end()
        reached = [one for one in pending if one.subject in confirmed]
        if not reached:
            raise DeviceUnfitError(f"no subject was confirmed on {self.device}: {'; '.join(self._warnings)}; raise --budget")
        return Found(
            trials=tuple(self._concluded(reached)),
            truths=tuple(truth for one in confirmed.values() for truth in one.truths()),
            components=tuple(one.scatter(subjects[place], pilots[place]) for place, one in confirmed.items() if one.rounds),
            warnings=tuple(dict.fromkeys(self._warnings)),
            timer=self._timer,
            created=self._created,
            seconds=time.monotonic() - began,
            complete=passes == self.options.passes and len(confirmed) == len(pilots),
        )

    def _pilots(self, subjects: Sequence[Subject], workers: Workers) -> dict[int, Pilot]:
        """By subject's number; without those that cannot be measured."""
        pilots: dict[int, Pilot] = {}
        for number, subject in enumerate(subjects):
            self.reporter.step(f"pilot of {subject.name}", number, len(subjects))
            believed = Pilot(time_us=1.0, sensitivity=1.0)
            slowdowns = (PILOT_SHARE,) if subject.planting is Planting.ROWS else ()
            wanted = comparing(subject, 1, slowdowns, believed)
            reply = self._ask(subject, wanted.arms, wanted.pairs, workers.native, replicates=PILOT_REPLICATES)
            if reply is None:
                continue
            arms, last = mean_us(reply.samples, self.options.plan.trim), wanted.pairs[-1]
            # A wait adds the time that it takes, whatever precedes it; what more rows add is not known before.
            added = wanted.nominal[last.name] > 0
            pilots[number] = pilot_of(arms[last.new], arms[last.old]) if added else Pilot(time_us=arms[last.old], sensitivity=1.0)
        return pilots

    def _passes(self, subjects: Sequence[Subject], pilots: dict[int, Pilot], workers: Workers, began: float) -> tuple[list[_Pending], int]:
        """All comparisons of the first stage, and how many passes were made."""
        pending: list[_Pending] = []
        longest = 0.0
        for number in range(self.options.passes):
            started = time.monotonic()
            if number and self.options.budget_s is not None and started + longest - began > PASSES_SHARE * self.options.budget_s:
                self._warn(f"the budget of {self.options.budget_s:g} s allowed {number} of {self.options.passes} passes")
                return pending, number
            for place, pilot in pilots.items():
                subject = subjects[place]
                shown = len(pilots) * number + list(pilots).index(place) + 1
                self.reporter.case(shown, len(pilots) * self.options.passes, subject.case, f"{subject.kernel}, {pilot.time_us:.1f} us")
                slowdowns = dict.fromkeys(self.options.slowdowns, self.options.planted)
                wanted = comparing(subject, self.options.identical, slowdowns, pilot)
                for part in wanted.batches(pairs_at_once(subject, self.device.memory_bytes)):
                    reply = self._ask(subject, part.arms, part.pairs, workers.native, looks=self.options.looks)
                    if reply is None:
                        continue
                    launches = _launches(reply, part.pairs)
                    pending += [
                        _Pending(
                            subject=place,
                            pass_number=number,
                            place=self._place(subject, part.nominal[name]),
                            compared=compared,
                            launches=launches[name],
                            seconds=reply.seconds / len(reply.compared),
                        )
                        for name, compared in reply.compared.items()
                    ]
            longest = max(longest, time.monotonic() - started)
        return pending, self.options.passes

    def _fresh_processes(
        self, subjects: Sequence[Subject], pilots: dict[int, Pilot], pending: Sequence[_Pending], workers: Workers, began: float
    ) -> dict[int, Truths]:
        """Confirm what was found, and measure each planting by itself; by number, the subjects that were reached."""
        claims: dict[int, list[_Pending]] = defaultdict(list)
        for one in pending:
            if needs_confirmation(one.compared.finding):
                claims[one.subject].append(one)
        confirmed: dict[int, Truths] = {}
        longest = 0.0
        with workers.fresh(self.options.processes) as fresh:
            try:
                for place, pilot in pilots.items():
                    started = time.monotonic()
                    if self.options.budget_s is not None and started + longest - began > self.options.budget_s:
                        self._warn(
                            f"the budget of {self.options.budget_s:g} s ended with {len(confirmed)} of {len(pilots)} subjects confirmed"
                        )
                        break
                    self.reporter.note(
                        f"confirm subject {len(confirmed) + 1} of {len(pilots)} in {len(fresh)} fresh processes: "
                        f"{len(claims[place])} findings  ({started - began:.0f} s)"
                    )
                    confirmed[place] = self._confirmed(subjects[place], pilot, claims[place], fresh)
                    longest = max(longest, time.monotonic() - started)
            except KeyboardInterrupt:
                self._warn(f"interrupted with {len(confirmed)} of {len(pilots)} subjects confirmed")
        return confirmed

    def _confirmed(self, subject: Subject, pilot: Pilot, claims: Sequence[_Pending], fresh: Sequence[Worker]) -> Truths:
        """One subject through all fresh processes."""
        found = Truths()
        # Long ones together: what is measured beside them ends with them.
        ordered = sorted(claims, key=lambda one: placements_for(one.compared.finding))
        groups = [ordered[start : start + CONFIRMED_AT_ONCE] for start in range(0, len(ordered), CONFIRMED_AT_ONCE)] or [[]]
        for worker in fresh:
            for number, group in enumerate(groups):
                self._confirm(subject, pilot, group, worker, found if number == 0 else None)
        return found

    def _confirm(self, subject: Subject, pilot: Pilot, claims: Sequence[_Pending], worker: Worker, found: Truths | None) -> None:
        """Measure the claims again in one fresh process, each in a pair of its own, and, with `found`, each planting by itself."""
        nominals = [one.place.nominal for one in claims]
        truths = [0.0, *self.options.slowdowns] if found is not None and subject.key else [0.0] if found is not None else []
        counts = Counter([*nominals, *truths])
        wanted = comparing(subject, counts.pop(0.0, 0), counts, pilot)
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

    def _concluded(self, pending: Sequence[_Pending]) -> list[PlantedTrial]:
        """Verdicts as `ab` gives them; a pass over the subjects is one suite."""
        trials: list[PlantedTrial] = []
        for number in range(max(one.pass_number for one in pending) + 1):
            suite = [one for one in pending if one.pass_number == number]
            confirmed = [
                confirm(one.compared.finding, one.by_process) if len(one.by_process) == self.options.processes else None for one in suite
            ]
            findings = [one.compared.finding for one in suite]
            adjusted: dict[VerdictKind, Sequence[float]] = {
                direction: select([combined_p(*both, direction) for both in zip(findings, confirmed, strict=True)]).adjusted
                for direction in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)
            }
            for place, (one, confirmation) in enumerate(zip(suite, confirmed, strict=True)):
                kind = conclude(one.compared.finding, confirmation).kind
                if kind in adjusted and adjusted[kind][place] > DEFAULT_RATE:
                    kind = VerdictKind.UNDECIDED
                trials.append(_trial(one, one.compared.finding, kind))
        return trials

    def _ask(
        self,
        subject: Subject,
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
            pairs=tuple(pairs),
            looks=looks,
            lengths=lengths,
        )
        reply = measure_undisturbed(
            task,
            worker,
            self._monitor,
            self.device,
            on_progress=lambda progress: self.reporter.step(progress.text, progress.done, progress.total),
            warn=self._warn,
        )
        if isinstance(reply, Failure):
            if reply.unfit:
                raise DeviceUnfitError(f"{subject.name}: {reply.reason}")
            self._warn(f"{subject.name} is left out where it failed: {reply.reason}")
            return None
        require_emptied(reply.coldness)
        if refused := label_refused(reply, self.options.plan.trim):
            self._warn(f"{subject.name} is left out where its times are labelled cold and are not: {refused}")
            return None
        self._timer = reply.timer
        return reply

    def _place(self, subject: Subject, nominal: float) -> Place:
        planting = subject.planting if nominal else Planting.IDENTICAL
        return Place(0, subject.case.key, subject.kernel, planting, nominal)

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self.reporter.note(text)


def _launches(reply: Measured, pairs: Sequence[Pair]) -> dict[str, int]:
    """By pair that was compared, the device activities of one call of its old arm, which are the same in every call; 0 where the timer
    cannot see them."""
    by_arm = {sample.arm: sample.kernels for sample in reply.samples}
    return {pair.name: by_arm[pair.old] for pair in pairs if pair.name in reply.compared}


def _trial(one: _Pending, finding: Finding, kind: VerdictKind) -> PlantedTrial:
    return PlantedTrial(
        place=one.place,
        time_us=one.compared.old_us,
        first=finding.kind,
        verdict=kind,
        change=finding.change,
        replicates=len(one.compared.logs),
        launches=one.launches,
        device_seconds=one.seconds,
    )
