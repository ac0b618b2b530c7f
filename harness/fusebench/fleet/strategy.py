"""`fusebench run` on several boards: the strategy hands cases out, longest first, and takes the findings in as they come.

The engine, the journal, the record and the judgement are those of a run on one board.  Each finished case is in the driver's journal before
its board gets the next one, so a lost process costs the case that it was measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..device import Device
from ..device.boards import cores_beside
from ..errors import DeviceUnfitError
from ..runner.case_kernels import CaseKernels, work_of
from ..runner.context import AHEAD, Reporter
from ..runner.engine import Budget
from ..runner.run.command import RunRequest, Session, checks_ahead
from ..runner.run.looks import confirming_budget
from ..runner.run.options import RunOptions
from ..runner.run.reckoning import expected_seconds
from ..runner.run.strategy import RunStrategy
from ..runner.run.suspected import Suspected
from ..runner.workers.ahead import Checks
from ..runner.workers.pool import WorkerPool
from ..schema import Case, CaseSummary, Result, Run, Sample
from ..store.journal import Journal
from .board_process import CaseLease, Checked, CheckLease, Received, RemeasureLease
from .boards import Answer, Board, Boards, setups_of
from .context import FleetContext, ReceivedWork


class FleetStrategy(RunStrategy):
    """Leases cases to boards.  All kernels of a case, and its confirmation, are on one board."""

    engine_keeps_budget = False
    context: FleetContext

    def __init__(
        self,
        context: FleetContext,
        request: RunRequest,
        options: RunOptions,
        boards: Callable[[dict[str, CaseKernels]], Boards],
        *,
        most_at_once: int,
        baseline: Run | None,
        planned_by: Run | None,
        journal: Journal | None,
    ) -> None:
        """
        Args:
            boards: makes the boards for these units.
            most_at_once: boards that measure at the same time; the others wait, and compile and check ahead.
            planned_by: a stored run, whose seconds per case plan the leases.
        """
        super().__init__(
            context,
            request.collection,
            options,
            rule=request.rule,
            baseline=baseline,
            confirm=request.confirm,
            reckoning=request.reckoning,
            journal=journal,
        )
        self._check_first = checks_ahead(request)
        self._make_boards, self._most_at_once, self._planned_by = boards, most_at_once, planned_by
        self._budget = Budget(request.budget_s)
        self._boards: Boards | None = None
        self._found: dict[str, ReceivedWork] = {}
        self._skipped: set[str] = set()
        """Keys of the cases for which the budget left no time."""

    def close(self) -> None:
        """End the boards' processes."""
        if self._boards is not None:
            self._boards.close()

    def plan(self, items: Sequence[Case]) -> list[CaseKernels]:
        units = super().plan(items)
        self._budget.start()
        return _InOrderOfCompletion(units, self._completed(units))

    def _completed(self, units: Sequence[CaseKernels]) -> Iterator[CaseKernels]:
        """The units, each when its results are known: what a resumed run finished, what boards finish, what is the same work."""
        before = {unit.case.key: unit for unit in units if self.finished_before(unit) is not None}
        known = set()
        for unit in before.values():
            yield unit
            if self.same_work(unit) is not None:
                known.add(work_of(unit))
        rest = [unit for unit in units if unit.case.key not in before]
        first = {work_of(unit): unit for unit in reversed(rest) if work_of(unit) not in known}
        leased = list(first.values())
        places = {unit.case.key for unit in leased}
        if leased:
            self._boards = self._make_boards({unit.case.key: unit for unit in leased})
            with self._boards as boards:
                yield from self._measured_on(boards, leased)
                yield from (unit for unit in rest if unit.case.key not in places)
                self._remeasure_suspects(boards)
        else:
            yield from rest

    def _measured_on(self, boards: Boards, units: Sequence[CaseKernels]) -> Iterator[CaseKernels]:
        seconds = expected_seconds([unit.case for unit in units], self.collection, self._planned_by)
        waiting = sorted(units, key=lambda unit: (-seconds[unit.case.key], unit.case.key))
        if self._check_first:
            self._check_on(boards, waiting)
        total, done = len(units), 0
        while done < total:
            self._lease_cases(boards, waiting)
            if waiting and self._budget_is_over:
                for unit in waiting:
                    self._skipped.add(unit.case.key)
                    self._found[unit.case.key] = ReceivedWork(None, None, self.context.reporter)
                    yield unit
                done += len(waiting)
                waiting = []
                continue
            for board, lease, answer in self._answers(boards):
                if isinstance(lease, CaseLease):
                    unit = self._units[lease.key]
                    if isinstance(answer, Received):
                        self._take_in(board, answer)
                        self._found[lease.key] = ReceivedWork(answer, board, self.context.reporter)
                        done += 1
                        yield unit
                    else:
                        waiting.insert(0, unit)

    def _lease_cases(self, boards: Boards, waiting: list[CaseKernels]) -> None:
        """Hand the longest cases to the idle boards, as many as may measure at once."""
        busy = sum(board.lease is not None for board in boards.alive)
        for board in boards.alive:
            if not waiting or busy >= self._most_at_once or self._budget_is_over:
                return
            if not board.idle:
                continue
            unit, work = waiting.pop(0), self._checks
            lease = CaseLease(
                key=unit.case.key,
                passed=work.passed.get(work_of(unit), {}),
                wrong=work.wrong.get(work_of(unit), {}),
                seconds=self._seconds_of_lease(unit, waiting, max(1, min(self._most_at_once, len(boards.alive)))),
                expected_s=self._reckoning.cases.get(unit.case.key) if self._reckoning is not None else None,
            )
            board.give(lease, f"{unit.case.key}  begins")
            busy += 1

    def _seconds_of_lease(self, unit: CaseKernels, waiting: Sequence[CaseKernels], boards: int) -> float | None:
        """The seconds that a case may take on one of so many boards, while others wait."""
        left = self._budget.share(1)
        if left is None or self._reckoning is None:
            return self._budget.share(-(-(len(waiting) + 1) // boards))
        return msgspec.structs.replace(self._reckoning, boards=boards).allowance(unit.case.key, [one.case.key for one in waiting], left)

    @property
    def _budget_is_over(self) -> bool:
        share = self._budget.share(1)
        return share is not None and share <= 0

    def _check_on(self, boards: Boards, units: Sequence[CaseKernels]) -> None:
        """Compile and check all cases on all boards before the first is measured: none is timed beside a compiler.

        Compilation takes as long for a small case as for a large one, so each board gets the same number.
        """
        with self.context.phases.timed(AHEAD):
            parts = len(boards.boards)
            left = [share for place in range(parts) if (share := units[place::parts])]
            found = Checks(passed={}, wrong={}, seconds={})
            while True:
                for board in boards.alive:
                    if board.idle and left:
                        keys = tuple(unit.case.key for unit in left.pop(0))
                        board.give(CheckLease(keys=keys), "compiles and checks")
                # A board that waits for its lock checks nothing, and is not waited for.
                if not any(isinstance(board.lease, CheckLease) for board in boards.alive) and (not left or self._all_ready(boards)):
                    break
                for _, lease, answer in self._answers(boards):
                    if isinstance(answer, Checked):
                        found.passed.update(answer.checks.passed)
                        found.wrong.update(answer.checks.wrong)
                        found.seconds.update(answer.checks.seconds)
                    elif isinstance(lease, CheckLease):
                        pass  # its cases are checked when they are measured
        self._checks = found
        self.context.phases.add({}, found.seconds)

    @staticmethod
    def _all_ready(boards: Boards) -> bool:
        """Whether no board still waits for its lock."""
        return all(board.ready for board in boards.alive)

    def _answers(self, boards: Boards) -> Iterator[Answer]:
        """What the boards say.

        Raises:
            DeviceUnfitError: no board is left.
        """
        yield from boards.answers()
        if not boards.alive:
            raise DeviceUnfitError(f"no board is left to measure on: {boards.why_none}")

    def _take_in(self, board: Board, answer: Received) -> None:
        """Keep what a board says beside its figures."""
        context = self.context
        context.states[board.uuid] = answer.state
        context.warnings += answer.warnings
        context.phases.add(answer.spending.phases_s, answer.spending.kernels_s)

    def work_on(self, unit: CaseKernels, number: int) -> ReceivedWork:
        return self._found.pop(unit.case.key)

    def keep(self, unit: CaseKernels, work: Any, *, finished: bool) -> None:
        if work.received is None:
            self.skip(unit, f"{self._budget} ended before this case")
        else:
            super().keep(unit, work, finished=finished)

    def repeat(self, unit: CaseKernels, earlier: CaseKernels) -> None:
        if earlier.case.key in self._skipped:
            self.skip(unit, f"{self._budget} ended before this case")
        else:
            super().repeat(unit, earlier)

    def finish(self, budget: Budget) -> None:
        """Suspects were remeasured before the boards were left."""

    def _remeasure_suspects(self, boards: Boards) -> None:
        """Remeasure the suspects look by look, each on the board that measured it first, or on another where that one is given up."""
        self._confirming = confirming_budget(self._budget, self.context.phases.spending().total_s)
        while chosen := self.suspected():
            asked = {one.suspect.case: one for one in chosen}
            done = 0
            while asked:
                if self._confirming_is_over and not any(board.lease is not None for board in boards.alive):
                    break
                self._lease_suspects(boards, asked)
                for board, lease, answer in self._answers(boards):
                    if isinstance(lease, RemeasureLease) and isinstance(answer, Received):
                        one = asked.pop(lease.key)
                        done += 1
                        unit, found = self._units[lease.key], ReceivedWork(answer, board, self.context.reporter)
                        self.context.reporter.case(done, len(chosen), unit.case, unit.shape)
                        found.measure(None)
                        self._take_in(board, answer)
                        self.keep_remeasured(one, found)
            if asked:
                self._warn_of_left(self._confirming, asked)
                return

    @property
    def _confirming_is_over(self) -> bool:
        share = self._confirming.share(1)
        return share is not None and share <= 0

    def _lease_suspects(self, boards: Boards, asked: dict[str, Suspected]) -> None:
        busy = {board.lease.key for board in boards.alive if isinstance(board.lease, RemeasureLease)}
        there = {board.uuid for board in boards.alive}
        for board in boards.alive:
            if not board.idle or len(busy) >= self._most_at_once or self._confirming_is_over:
                continue
            mine = (one for key, one in asked.items() if key not in busy and self._home(key, there) in (board.uuid, ""))
            one = next(mine, None)
            if one is None:
                continue
            key = one.suspect.case
            self.context.reporter.note(one.words)
            lease = RemeasureLease(
                key=key,
                known=tuple(self._known(key)[1]),
                reason=one.suspect.reason,
                timer=self.context.timer,
                kernels=one.kernels,
                first=one.first,
                before=one.before,
                processes=one.processes,
                looks=one.looks,
            )
            board.give(lease, f"{key}  is remeasured")
            busy.add(key)

    def _home(self, key: str, there: set[str]) -> str:
        """The board that measured the case; empty where it is given up, or measures for another run."""
        board = self._known(key)[0].board
        return board if board in there else ""

    @property
    def samples(self) -> list[Sample]:
        return [sample for key in self._units for sample in self._samples.get(key, ())]

    def _record(self, cases: Sequence[CaseSummary], results: Sequence[Result], *, complete: bool) -> Run:
        """The record in the selection's order, whichever board was first."""
        place = {key: number for number, key in enumerate(self._units)}
        return super()._record(
            sorted(cases, key=lambda one: place.get(one.case.key, len(place))),
            sorted(results, key=lambda one: place.get(one.case_key, len(place))),
            complete=complete and not self._skipped,
        )


class _InOrderOfCompletion(list[CaseKernels]):
    """The units of a run; they come in the order in which their results do."""

    def __init__(self, units: Sequence[CaseKernels], completed: Iterator[CaseKernels]) -> None:
        super().__init__(units)
        self._completed = completed

    def __iter__(self) -> Iterator[CaseKernels]:
        return self._completed


def on_boards(devices: Sequence[Device], *, most_at_once: int | None = None, planned_by: Run | None = None) -> Session:
    """The session of a run on several boards.

    Args:
        most_at_once: boards that measure at the same time; all where None.
        planned_by: a stored run, whose seconds per case plan the leases where no baseline does.
    """

    @contextmanager
    def session(
        request: RunRequest, reporter: Reporter, options: RunOptions, *, baseline: Run | None, journal: Journal
    ) -> Iterator[tuple[RunStrategy, list[str]]]:
        pool = WorkerPool(devices[0], request.collection.roots, request.silence_s, timer=request.timer)
        context = FleetContext(devices, request, reporter, options, pool)

        def boards(units: dict[str, CaseKernels]) -> Boards:
            return Boards(setups_of(request, devices, units), warn=context.warn, note=reporter.note, show=reporter.step)

        strategy = FleetStrategy(
            context,
            request,
            options,
            boards,
            most_at_once=most_at_once or len(devices),
            baseline=baseline,
            planned_by=baseline or planned_by,
            journal=journal,
        )
        told = [text for device in devices for text in device.warnings]
        if cores_beside(devices)[0] is None:
            told.append(f"{len(devices)} boards share all cores of this host: there are too few to give each its own")
        try:
            yield strategy, list(dict.fromkeys(told))
        finally:
            strategy.close()

    return session
