"""The strategy of `fusebench calibrate`: comparisons whose answer is known, put through the whole pipeline that `ab` uses.

A pilot measures the effect of injected work on each target's time. Then every target is visited once in each pass: a sequential test judges
many pairs, each with arms of its own, and fresh processes confirm the findings, as in `ab`. Five processes confirm all findings, and they
make no first finding themselves. In a target's first visit they also measure each injected slowdown with a fixed number of replicates: the
ground truth, and the components of variance.

A calibration that is cut short keeps its whole visits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from ...errors import DeviceUnfitError
from ...schema import Finding, GroundTruth, InjectedTrial, VerdictKind
from ...stats.confirmation import confirm
from ...store.calibrations import CaseComponents
from ...verdict.conclusion import PairedComparison, conclude_all
from ...verdict.margins.call_classes import call_class
from ..context import MeasuringContext
from ..engine import Budget, Strategy
from ..workers.process import WorkerProcess
from .ground_truth import GroundTruths
from .pilots import Pilot, make_pilot
from .resuming import CalibrationState, stored_ground_truths
from .targets import CalibrationTarget
from .visit import CalibrationOptions, Pending, Visit, VisitWork


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The contribution of one calibration to the record, as session 0; joining gives it its number."""

    trials: tuple[InjectedTrial, ...]
    ground_truths: tuple[GroundTruth, ...]
    components: tuple[CaseComponents, ...]
    warnings: tuple[str, ...]
    timer: str
    created: str
    seconds: float
    complete: bool
    """Whether every target was visited in every pass."""
    unfit: str = ""
    """Why the device proved unfit and ended the calibration early; empty if it did not."""


class CalibrationStrategy(Strategy[CalibrationTarget, Visit, VisitWork, Found]):
    """Collects whole visits; one finished visit is enough for a calibration."""

    whole_units = True

    def __init__(self, context: MeasuringContext, options: CalibrationOptions, resumed: CalibrationState | None = None) -> None:
        """`resumed`: the state of a stopped calibration to go on with."""
        self.context: MeasuringContext = context
        self.options = options
        self._targets: Sequence[CalibrationTarget] = ()
        self._pilots: dict[int, Pilot | None] = {}
        """None for a target that cannot be measured."""
        self._fresh: Sequence[WorkerProcess] = ()
        self._pending: list[Pending] = []
        self._ground_truths: dict[int, GroundTruths] = {}
        self._unfit = ""
        self.interrupted = False
        """Whether an interruption or an unfit device, and no budget, ended it early."""
        self._done: list[tuple[int, int]] = []
        self._resumed = resumed
        if resumed is not None:
            context.timer = resumed.timer
            context.warnings += resumed.warnings
            self._done, self._pending = list(resumed.done), list(resumed.pending)
            self._pilots.update(resumed.pilots)
            self._ground_truths = resumed.known_ground_truths()

    @property
    def begun(self) -> bool:
        return bool(self._pending)

    def prepare(self, items: Sequence[CalibrationTarget]) -> None:
        self._targets = items

    def plan(self, items: Sequence[CalibrationTarget]) -> list[Visit]:
        """The visits to the targets that a pilot could measure; fresh workers are started for all of them.

        They start together with the first worker, before anything is timed: one after the other, the starts took a third of a quick look.
        """
        self.context.pool.native.start()
        self._fresh = self.context.fresh(self.options.processes)
        options, numbers = self.options, range(self.options.passes)
        if not options.pilots_ahead:
            return [Visit(number, place, target, None, {}) for number in numbers for place, target in enumerate(items)]
        for place, target in enumerate(items if self._resumed is None else ()):
            self.context.reporter.step(f"pilot of {target.name}", place, len(items))
            self._pilot(place, target)
        counts = injected_counts(self._known, options.passes, options.injected, options.trials)
        return [Visit(number, place, items[place], pilot, counts[place]) for number in numbers for place, pilot in self._known.items()]

    def _pilot(self, place: int, target: CalibrationTarget) -> Pilot | None:
        """The target's pilot, made at the first call; None if the target cannot be measured."""
        if place not in self._pilots:
            self._pilots[place] = make_pilot(target, self.options.slowdowns, self.context)
        return self._pilots[place]

    @property
    def _known(self) -> dict[int, Pilot]:
        return {place: pilot for place, pilot in self._pilots.items() if pilot is not None}

    def taken_over(self, unit: Visit) -> bool:
        return (unit.pass_number, unit.place) in self._done

    def work_on(self, unit: Visit, number: int) -> VisitWork:
        if unit.pilot is None and (pilot := self._pilot(unit.place, unit.target)) is not None:
            unit = unit._replace(pilot=pilot, injected=dict.fromkeys(pilot.values, self.options.injected))
        return VisitWork(unit, self.options, self.context, self._fresh, first=unit.place not in self._ground_truths)

    def keep(self, unit: Visit, work: VisitWork, *, finished: bool) -> None:
        """Keep what the visit found when it is over, and nothing of it before."""
        if not finished:
            return
        self._done.append((unit.pass_number, unit.place))
        if not work.found:
            return
        self._pending += work.found
        if work.ground_truths is not None:
            self._ground_truths[unit.place] = work.ground_truths

    def stopped(self, done: int, units: int, budget: Budget) -> None:
        self.context.warn(f"{budget} ended after {done} of {units} visits; raise --budget for more")

    def settles_for(self, error: KeyboardInterrupt | DeviceUnfitError, done: int, units: int) -> bool:
        """After the first finished visit, an interruption or an unfit device ends the calibration, and the finished visits are kept."""
        if not self._pending:
            return False
        self.interrupted = True
        visits = f"after {done} of {units} visits"
        if isinstance(error, DeviceUnfitError):
            self._unfit = f"{visits}, which are kept: {error}"
            self.context.warn(f"the device proved unfit {self._unfit}")
        else:
            self.context.warn(f"interrupted {visits}")
        return True

    def state(self, sources: str) -> CalibrationState:
        """What the visits so far have found; `sources`: the digest of the kernels folders."""
        context = self.context
        return CalibrationState(
            created=context.created_text,
            timer=context.timer,
            environment=context.environment_at_start,
            sources=sources,
            options=self.options,
            targets=list(self._targets),
            pilots=self._known,
            done=self._done,
            pending=self._pending,
            ground_truths=[stored_ground_truths(place, found) for place, found in self._ground_truths.items()],
            warnings=context.distinct_warnings,
            spending=context.phases.spending(),
        )

    def record(self, *, complete: bool) -> Found:
        """What the calibration found.

        Raises:
            DeviceUnfitError: no target was measured.
        """
        context = self.context
        if not self._pending:
            raise DeviceUnfitError(f"no target was measured on {context.device}: {'; '.join(context.warnings) or 'there is none'}")
        return Found(
            trials=tuple(self._concluded()),
            ground_truths=tuple(truth for one in self._ground_truths.values() for truth in one.ground_truths()),
            components=tuple(
                one.scatter(self._targets[place], self._known[place].time_us) for place, one in self._ground_truths.items() if one.rounds
            ),
            warnings=tuple(context.distinct_warnings),
            timer=context.timer,
            created=context.created_text,
            seconds=context.phases.spending().total_s,
            complete=complete and len(self._known) == len(self._targets),
            unfit=self._unfit,
        )

    def _concluded(self) -> list[InjectedTrial]:
        """Verdicts as `ab` gives them; a pass over the targets is one suite."""
        trials: list[InjectedTrial] = []
        pending = self._pending
        for number in range(max(one.pass_number for one in pending) + 1):
            suite = [one for one in pending if one.pass_number == number]
            compared = [
                PairedComparison(
                    finding=one.compared.finding,
                    confirmation=confirm(one.compared.finding, one.by_process) if len(one.by_process) == self.options.processes else None,
                )
                for one in suite
            ]
            for one, found in zip(suite, conclude_all(compared), strict=True):
                trials.append(_trial(one, one.compared.finding, found.verdict.kind))
        return trials


def _trial(one: Pending, finding: Finding, kind: VerdictKind) -> InjectedTrial:
    return InjectedTrial(
        place=one.place,
        time_us=one.compared.old_us,
        first=finding.kind,
        verdict=kind,
        change=finding.change,
        replicates=len(one.compared.logs),
        launches=one.compared.launches,
        device_seconds=one.seconds,
    )


def injected_counts(pilots: Mapping[int, Pilot], passes: int, fewest: int, trials: int) -> dict[int, dict[float, int]]:
    """By target and slowdown, pairs in each pass: `fewest`, or as many as give the slowdown `trials` in the target's class of calls.

    Targets of one class share the trials that it needs.  The two classes of calls of two launches on an H200 hold one target each: with
    three pairs in each of two passes nothing could ever be claimed of them.
    """
    wanted: dict[tuple[bool, int, float], list[int]] = defaultdict(list)
    for place, pilot in pilots.items():
        for slowdown in pilot.values:
            wanted[(*call_class(pilot.time_us, pilot.launches), slowdown)].append(place)
    counts: dict[int, dict[float, int]] = {place: {} for place in pilots}
    for (_, _, slowdown), places in wanted.items():
        for place in places:
            counts[place][slowdown] = max(fewest, math.ceil(trials / (passes * len(places))))
    return counts
