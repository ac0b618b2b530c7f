"""The markers `speed(min_speedup=..., over=...)` and `sol(min=...)`: what a test asks, and the failure where it is missed.

A test fails where the whole interval lies below the limit, so that noise alone fails none.  Where only the figure lies below it, the test
passes with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ..report.wording import bounded
from ..schema import Estimate
from .figures import Figures


class UndecidedWarning(pytest.PytestWarning):
    """A figure below its limit whose interval reaches the limit."""


class Speed(msgspec.Struct, frozen=True):
    """`speed(min_speedup=1.2, over=...)`."""

    min_speedup: float
    over: Any = None


def speeds(item: pytest.Item) -> list[Speed]:
    """What the test's `speed` markers ask.

    Raises:
        pytest.fail.Exception: a marker without `min_speedup`, or with something else.
    """
    return [Speed(_limit(mark, "min_speedup", ("over",)), mark.kwargs.get("over")) for mark in item.iter_markers("speed")]


def judge(item: pytest.Item, figures: Figures, over_arm: Callable[[Any], str], next_step: str) -> None:
    """Fail the test where it misses what its markers ask.

    Args:
        over_arm: the name of the arm that a marker's `over` means; the baseline's for None.
        next_step: what the failure advises.

    Raises:
        pytest.fail.Exception: the test misses a limit, or a limit cannot be judged.
    """
    asked: list[_Asked] = []
    for speed in speeds(item):
        over = over_arm(speed.over)
        text = f"speed(min_speedup={speed.min_speedup:g})"
        asked.append(_Asked(text, "x", speed.min_speedup, figures.speedup(over), f"as fast as {over}" if over else ""))
    for mark in item.iter_markers("sol"):
        limit = _limit(mark, "min", ())
        if limit > 1:
            pytest.fail(f"sol(min={limit:g}): the share is at most 1; write 0.8 for 80 %", pytrace=False)
        asked.append(_Asked(f"sol(min={limit:g})", "%", limit, figures.sol, "of the speed of light"))
    for one in asked:
        _judge_one(item, figures, one, next_step)


class _Asked(msgspec.Struct, frozen=True):
    """One limit, and the figure that it is compared with."""

    text: str
    unit: str
    limit: float
    found: Estimate | None
    of_what: str


def _judge_one(item: pytest.Item, figures: Figures, asked: _Asked, next_step: str) -> None:
    found, unit = asked.found, asked.unit
    if found is None:
        missing = "no speed of light: its minimum bytes are not known" if unit == "%" else "nothing to compare with; name it with over=..."
        pytest.fail(f"{item.name}: {asked.text} cannot be judged: {figures.arm} has {missing}", pytrace=False)
    if figures.not_cold:
        pytest.fail(f"{item.name}: {asked.text} cannot be judged: the samples are not cold: {figures.not_cold}", pytrace=False)
    if found.value >= asked.limit:
        return
    is_slower = found.high < asked.limit
    undecided = "measure more placements with --fusebench-replicates N: the interval reaches the limit, so this is undecided"
    text = "\n".join(
        [
            f"{item.name} is {'slower' if is_slower else 'perhaps slower'} than {asked.text} allows",
            f"  measured: {_with_interval(found, unit)} {asked.of_what}; {figures.time_us().value:.2f} us a call ({figures.conditions})",
            f"  asked:    at least {_shown(asked.limit, unit)}",
            f"  device:   {figures.device}",
            f"  next:     {next_step if is_slower else undecided}",
        ]
    )
    if is_slower:
        pytest.fail(text, pytrace=False)
    item.warn(UndecidedWarning(text))


def _limit(mark: pytest.Mark, name: str, others: tuple[str, ...]) -> float:
    value = mark.kwargs.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if mark.args or not number or set(mark.kwargs) - {name, *others}:
        options = ", ".join([f"{name}=NUMBER", *(f"{other}=..." for other in others)])
        found = ", ".join([*map(_written, mark.args), *(f"{key}={_written(one)}" for key, one in mark.kwargs.items())])
        pytest.fail(f"@pytest.mark.{mark.name}({found}): expected @pytest.mark.{mark.name}({options}), the number above 0", pytrace=False)
    return float(value)  # type: ignore[arg-type]


def _written(value: Any) -> str:
    """As the test's file has it."""
    return value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)


def _with_interval(found: Estimate, unit: str) -> str:
    interval = f" [{_shown(found.low, unit)}, {_shown(found.high, unit)}]" if bounded(found) else " [no interval]"
    return _shown(found.value, unit) + interval


def _shown(value: float, unit: str) -> str:
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.3g}x" if value >= 10 else f"{value:.3f}x"
