"""A comparison and a calibration that are killed between two cases leave a record of the finished ones."""

from __future__ import annotations

from typing import Any

import pytest

from fusebench.runner.engine import Engine


class Killed(BaseException):
    """What nothing catches, as `kill -9`."""


class Units:
    """A strategy of three units."""

    whole_units = False

    def __init__(self) -> None:
        self.done: list[int] = []
        quiet: Any = lambda *_: None  # noqa: E731
        reporter = type("Reporter", (), {"begin": quiet, "case": quiet, "end": quiet})
        unit_free: Any = {"__enter__": lambda self: self, "__exit__": lambda *_: None, "reporter": reporter}
        self.context = type("Context", (), unit_free)()

    def prepare(self, items: Any) -> None: ...

    def plan(self, items: Any) -> Any:
        return [type("Unit", (), {"case": None, "shape": "", "number": number})() for number in items]

    def taken_over(self, unit: Any) -> bool:
        return False

    def same_work(self, unit: Any) -> None: ...

    def work_on(self, unit: Any, number: int) -> Any:
        return type("Work", (), {"measure": lambda self, seconds: None})()

    def seconds_for(self, *_: Any) -> None: ...

    def keep(self, unit: Any, work: Any, *, finished: bool) -> None:
        self.done.append(unit.number)

    def settles_for(self, *_: Any) -> bool:
        return False

    def finish(self, budget: Any) -> None: ...


def test_the_record_so_far_is_written_after_every_unit_and_before_the_next() -> None:
    strategy: Any = Units()
    written: list[list[int]] = []

    def keep() -> None:
        written.append(list(strategy.done))
        if len(written) == 2:
            raise Killed

    with pytest.raises(Killed):
        Engine(strategy, on_unit=keep).run([7, 8, 9])
    assert written == [[7], [7, 8]]
