"""Paired step times: every round runs the variants forth and back (ABBA), so that a drift of clocks falls on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...schema import Estimate
from ...stats.paired import half_width, ratio_estimate, time_estimate

if TYPE_CHECKING:
    import torch

FEWEST_ROUNDS, MOST_ROUNDS = 4, 60
TARGET = 0.003
"""Half width of a ratio's interval, as a share of it, at which measuring ends."""

Step = Callable[[], object]


def time_rounds(
    steps: Mapping[str, Step],
    *,
    device: torch.device,
    budget_s: float,
    target: float = TARGET,
    before: str = "split",
    fewest: int = FEWEST_ROUNDS,
    timed: Callable[[Step, torch.device], float] | None = None,
    on_step: Callable[[str], None] = lambda name: None,
    on_round: Callable[[int, float], None] = lambda done, width: None,
    keep: Callable[[Mapping[str, Sequence[float]]], None] = lambda so_far: None,
) -> dict[str, list[float]]:
    """Milliseconds of a step by variant, one per round: the mean of the round's two steps.

    Rounds go on until every ratio to `before` is known to `target`, or `budget_s` seconds are over; at least `fewest` are made.

    Args:
        timed: milliseconds of one step on the device; wall clock by default.
        on_step: called with a variant's name after each of its steps, when the clock has stopped.
        keep: called with all rounds so far after each round, from the `fewest`-th on.
    """
    names, time_step = list(steps), timed or wall_ms
    found: dict[str, list[float]] = {name: [] for name in names}
    ends = time.monotonic() + budget_s
    for done in range(1, MOST_ROUNDS + 1):
        of_round: dict[str, list[float]] = {name: [] for name in names}
        # The order turns by one each round: no variant always follows the same one.
        turned = [*names[done % len(names) :], *names[: done % len(names)]]
        for name in (*turned, *reversed(turned)):
            of_round[name].append(time_step(steps[name], device))
            on_step(name)
        for name, values in of_round.items():
            found[name].append(sum(values) / 2)
        if done >= fewest:
            width = max((half_width(ratio(found[name], found[before])) for name in names if name != before), default=0.0)
            on_round(done, width)
            keep(found)
            if width <= target or time.monotonic() > ends:
                break
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Time over time, paired by round: geometric mean with a Student t interval over rounds."""
    return ratio_estimate([[value] for value in above], [[value] for value in below], 0.0)


def step_time(rounds: Sequence[float]) -> Estimate:
    """Geometric mean of the rounds with its interval, in their own unit."""
    return time_estimate([[value] for value in rounds], 0.0)


def wall_ms(step: Step, device: torch.device) -> float:
    """Milliseconds of one step on an idle device, until the device is done."""
    import torch

    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    returned = step()
    if cuda:
        torch.cuda.synchronize(device)
    elapsed = time.perf_counter() - began
    del returned
    return 1000 * elapsed
