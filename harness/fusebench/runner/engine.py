"""The one measurement engine: it takes cases through a strategy, and keeps final results however it ends.

The engine owns order, budget, identical cases, interruption and completion. A strategy (`run`, `ab`, `calibrate`, `count`) defines the work
on one case, the record, and the work after the last case.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from ..errors import DeviceUnfitError
from ..schema import Case, Sample
from .context import Context


class Unit(Protocol):
    """One case to work on, as a strategy prepares it."""

    @property
    def case(self) -> Case: ...

    @property
    def shape(self) -> str:
        """The case's label for readers."""


class Work(Protocol):
    """The work on one unit; its findings so far may be read at any time."""

    def measure(self, seconds: float | None) -> None:
        """Do the work within `seconds`; None for no limit."""


T = TypeVar("T")
U = TypeVar("U", bound=Unit)
W = TypeVar("W", bound=Work)
Item = TypeVar("Item")
Record = TypeVar("Record")


class Budget:
    """The seconds that a measurement may take, from `start` on; None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._started = time.monotonic()

    def __str__(self) -> str:
        return f"the budget of {self.seconds:g} s" if self.seconds is not None else "no budget"

    def start(self) -> None:
        """Count from now."""
        self._started = time.monotonic()

    def share(self, cases: int) -> float | None:
        """An even share for each of `cases` cases of the time left; negative when it is over."""
        return None if self.seconds is None else (self.seconds - (time.monotonic() - self._started)) / cases

    def while_it_lasts(self, items: Sequence[T]) -> Iterator[tuple[int, T]]:
        """The items with their places, until one as long as the longest so far would end after the budget."""
        longest = 0.0
        for place, item in enumerate(items):
            began = time.monotonic()
            if self.seconds is not None and began + longest - self._started >= self.seconds:
                return
            yield place, item
            longest = max(longest, time.monotonic() - began)


class Strategy(ABC, Generic[Item, U, W, Record]):
    """The work on each case, and the record.

    `Item` is what the caller selects (a case, a calibration target), `U` the prepared unit, `W` the work on it.
    """

    whole_units = False
    """Whether a unit that may not fit in the rest of the budget is never begun: the measurement then stops before it."""
    context: Context

    @abstractmethod
    def prepare(self, items: Sequence[Item]) -> None:
        """Refuse a selection that cannot be measured, before anything starts."""

    @abstractmethod
    def plan(self, items: Sequence[Item]) -> Sequence[U]:
        """The units, in order.  The device is watched, and workers may be asked."""

    @abstractmethod
    def work_on(self, unit: U, number: int) -> W:
        """The work on a unit, the `number`-th from 0."""

    @abstractmethod
    def keep(self, unit: U, work: W, *, finished: bool) -> None:
        """Take over the findings of the work; without `finished` it was interrupted."""

    @abstractmethod
    def record(self, *, complete: bool) -> Record:
        """The record as it stands; `complete` says whether every unit was measured."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether there is anything to record."""

    @property
    def samples(self) -> list[Sample]:
        """Every timed call that is kept, in order."""
        return []

    def seconds_for(self, unit: U, rest: int, budget: Budget) -> float | None:
        """The seconds that a unit may take, of which there are `rest` with it: an even share of the budget's rest.  None for no limit,
        and none or fewer where the budget is over."""
        return budget.share(rest)

    def taken_over(self, unit: U) -> bool:
        """Whether an earlier run had finished the unit; it is then in the record."""
        return False

    def same_work(self, unit: U) -> Hashable | None:
        """A key that units of identical work share; None if every unit is measured."""
        return None

    def repeat(self, unit: U, earlier: U) -> None:
        """Give `unit` the results of `earlier`, a unit of identical work."""
        raise NotImplementedError

    def skip(self, unit: U, reason: str) -> None:
        """Record that a unit is not measured, with the reason."""
        raise NotImplementedError

    def stopped(self, done: int, units: int, budget: Budget) -> None:
        """Report that the budget ended after `done` of `units` (for a strategy with `whole_units`)."""
        raise NotImplementedError

    def settles_for(self, error: KeyboardInterrupt | DeviceUnfitError, done: int, units: int) -> bool:
        """Whether the findings of `done` of `units` are a valid result, so that `error` only ends the measurement early."""
        return False

    def finish(self, budget: Budget) -> None:
        """Work that follows the last unit, such as measuring suspects again."""


class Engine(Generic[Item, U, W, Record]):
    """Runs a strategy over cases; `record` may be taken at any time, also after an interruption."""

    def __init__(
        self, strategy: Strategy[Item, U, W, Record], budget_s: float | None = None, *, on_unit: Callable[[], None] = lambda: None
    ) -> None:
        """`on_unit`: called after every unit, before the next one begins; writes the record so far to disk."""
        self.strategy = strategy
        self._on_unit = on_unit
        self.budget = Budget(budget_s)
        self.complete = False
        self._measured: dict[Hashable, U] = {}
        self._lacking = False

    def run(self, items: Sequence[Item]) -> None:
        """Measure everything.

        Raises:
            UsageError: the strategy refuses the selection.
            DeviceUnfitError: the device was touched again and again, or its timer lost records.
            KeyboardInterrupt: and any other exception, after what is final was kept.
        """
        strategy, reporter = self.strategy, self.strategy.context.reporter
        strategy.prepare(items)
        self.budget.start()
        reporter.begin()
        try:
            with strategy.context:
                units = strategy.plan(items)
                for number, unit in self._within_budget(units):
                    reporter.case(number + 1, len(units), unit.case, unit.shape)
                    try:
                        self._take(unit, number, len(units))
                        self._on_unit()
                    except (KeyboardInterrupt, DeviceUnfitError) as error:
                        if not strategy.settles_for(error, number, len(units)):
                            raise
                        self._lacking = True
                        break
                strategy.finish(self.budget)
            self.complete = not self._lacking
        finally:
            reporter.end()

    def record(self) -> Record:
        """The record as it stands."""
        return self.strategy.record(complete=self.complete)

    @property
    def samples(self) -> list[Sample]:
        """Every timed call that is kept, in order."""
        return self.strategy.samples

    @property
    def begun(self) -> bool:
        """Whether there is anything to record."""
        return self.strategy.begun

    def _within_budget(self, units: Sequence[U]) -> Iterator[tuple[int, U]]:
        if not self.strategy.whole_units:
            yield from enumerate(units)
            return
        done = 0
        for number, unit in self.budget.while_it_lasts(units):
            yield number, unit
            done = number + 1
        if done < len(units):
            self.strategy.stopped(done, len(units), self.budget)
            self._lacking = True

    def _take(self, unit: U, number: int, units: int) -> None:
        """Measure a unit, unless an earlier run did, an earlier unit was the same work, or the budget is over."""
        strategy = self.strategy
        taken_over = strategy.taken_over(unit)
        key = strategy.same_work(unit)
        if taken_over:
            if key is not None:
                self._measured.setdefault(key, unit)
            return
        if key is not None and key in self._measured:
            earlier = self._measured[key]
            strategy.context.reporter.note(f"case {unit.case.key} is the same work as {earlier.case.key}, whose results it takes")
            strategy.repeat(unit, earlier)
            return
        seconds = None if strategy.whole_units else strategy.seconds_for(unit, units - number, self.budget)
        if seconds is not None and seconds <= 0:
            self._lacking = True
            strategy.skip(unit, f"{self.budget} ended before this case")
            return
        self._measure(unit, number, seconds)
        if key is not None:
            self._measured[key] = unit

    def _measure(self, unit: U, number: int, seconds: float | None) -> None:
        work = self.strategy.work_on(unit, number)
        finished = False
        try:
            work.measure(seconds)
            finished = True
        finally:
            self.strategy.keep(unit, work, finished=finished)
