"""Calibration: comparisons whose answer is known, put through the whole pipeline that `ab` uses.

A pilot finds what planted work does to each subject's time.  Then every subject is visited, once in each pass: many pairs with arms of
their own are judged while they are being measured, and fresh processes confirm what was found, as they do for `ab`.  The same five serve
all findings: each is fresh to every first finding, and no first finding is theirs.  In a subject's first visit they also measure each
planting with a fixed number of replicates: its truth, and the components of variance.

A calibration that is cut short keeps its whole visits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ...device import Device, EnvironmentMonitor, environment_of
from ...errors import DeviceUnfitError
from ...schema import Finding, VerdictKind
from ...stats.confirmation import combined_p, conclude, confirm
from ...stats.fdr import DEFAULT_RATE, select
from ...stats.injection import GroundTruth, PlantedTrial
from ...store.calibrations import CaseComponents
from ..phases import PhaseTimer
from ..reporter import Reporter
from ..workers.checking import Workers
from ..workers.interference import Worker
from ..workers.pool import WorkerPool
from .ground_truth import GroundTruths
from .pilots import Pilot
from .targets import CalibrationTarget
from .trial_counts import injected_counts
from .visit import CalibrationOptions, Pending, Visit, Visiting


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one calibration adds to the record, as session 0 of it: it gets its number when it is joined to others."""

    trials: tuple[PlantedTrial, ...]
    truths: tuple[GroundTruth, ...]
    components: tuple[CaseComponents, ...]
    warnings: tuple[str, ...]
    timer: str
    created: str
    seconds: float
    complete: bool
    """Whether every subject was visited in every pass."""
    unfit: str = ""
    """Why the device proved unfit, which ended the calibration with what it has; empty where it did not."""


class Calibrating:
    """One calibration of one device."""

    def __init__(self, device: Device, project_root: Path, options: CalibrationOptions, reporter: Reporter) -> None:
        self.device, self.options, self.reporter = device, options, reporter
        self.environment = environment_of(device, project_root)
        self._monitor = EnvironmentMonitor(device)
        self._warnings: list[str] = []
        self._visiting = Visiting(device, options, self._monitor, reporter, self._warn)
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        self._pending: list[Pending] = []
        self._truths: dict[int, GroundTruths] = {}
        self._unfit = ""

    def run(self, subjects: Sequence[CalibrationTarget], workers: Workers) -> Found:
        """Measure everything.

        Raises:
            DeviceUnfitError: nothing could be measured; or, before the first visit was over, the device was touched again and again, its
                timer lost records, or a worker could not start.
            KeyboardInterrupt: before the first visit was over.  Later ones, and a device that proves unfit later, end the calibration, and
                what it has is kept.
        """
        began = time.monotonic()
        self.reporter.begin(len(subjects) * self.options.passes)
        try:
            with self._monitor:
                pilots = self._pilots(subjects, workers)
                complete = self._visits(subjects, pilots, workers, began)
        finally:
            self.reporter.end()
        if not self._pending:
            raise DeviceUnfitError(f"no subject was measured on {self.device}: {'; '.join(self._warnings) or 'there is none'}")
        return Found(
            trials=tuple(self._concluded(self._pending)),
            truths=tuple(truth for one in self._truths.values() for truth in one.truths()),
            components=tuple(one.scatter(subjects[place], pilots[place]) for place, one in self._truths.items() if one.rounds),
            warnings=tuple(dict.fromkeys(self._warnings)),
            timer=self._visiting.timer,
            created=self._created,
            seconds=time.monotonic() - began,
            complete=complete and len(pilots) == len(subjects),
            unfit=self._unfit,
        )

    def _pilots(self, subjects: Sequence[CalibrationTarget], workers: Workers) -> dict[int, Pilot]:
        """By subject's number; without those that cannot be measured."""
        pilots: dict[int, Pilot] = {}
        for number, subject in enumerate(subjects):
            self.reporter.step(f"pilot of {subject.name}", number, len(subjects))
            if (pilot := self._visiting.pilot(subject, workers.native)) is not None:
                pilots[number] = pilot
        return pilots

    def _visits(self, subjects: Sequence[CalibrationTarget], pilots: dict[int, Pilot], workers: Workers, began: float) -> bool:
        """All visits; False where the budget or an interruption ended them early."""
        options = self.options
        counts = injected_counts(pilots, options.passes, options.planted, options.trials)
        planned = [
            Visit(number, place, subjects[place], pilots[place], counts[place]) for number in range(options.passes) for place in pilots
        ]
        budget_s = options.budget_s
        longest = 0.0
        with WorkerPool(workers, PhaseTimer()) as pool:
            fresh = pool.fresh(options.processes)
            for done, visit in enumerate(planned):
                started = time.monotonic()
                if budget_s is not None and started + longest - began > budget_s:
                    self._warn(f"the budget of {budget_s:g} s ended after {done} of {len(planned)} visits; raise --budget for more")
                    return False
                shown = f"{visit.subject.kernel}, {visit.pilot.time_us:.1f} us"
                self.reporter.case(done + 1, len(planned), visit.subject.case, shown)
                try:
                    self._make(visit, workers.native, fresh)
                except KeyboardInterrupt:
                    if not self._pending:
                        raise
                    self._warn(f"interrupted after {done} of {len(planned)} visits")
                    return False
                except DeviceUnfitError as error:
                    if not self._pending:
                        raise
                    self._unfit = f"after {done} of {len(planned)} visits, which are kept: {error}"
                    self._warn(f"the device proved unfit {self._unfit}")
                    return False
                longest = max(longest, time.monotonic() - started)
        return True

    def _make(self, visit: Visit, worker: Worker, fresh: Sequence[Worker]) -> None:
        """Keeps what the visit found when it is over, and nothing of it before."""
        first = None if visit.place in self._truths else GroundTruths()
        found = self._visiting.compare(visit, worker)
        if not found:
            return
        self._visiting.confirm(visit, found, fresh, first)
        self._pending += found
        if first is not None:
            self._truths[visit.place] = first

    def _concluded(self, pending: Sequence[Pending]) -> list[PlantedTrial]:
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

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self.reporter.note(text)


def _trial(one: Pending, finding: Finding, kind: VerdictKind) -> PlantedTrial:
    return PlantedTrial(
        place=one.place,
        time_us=one.compared.old_us,
        first=finding.kind,
        verdict=kind,
        change=finding.change,
        replicates=len(one.compared.logs),
        launches=one.compared.launches,
        device_seconds=one.seconds,
    )
