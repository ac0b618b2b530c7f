"""How soon a change in a history of runs is seen, and how often one is seen that is not there: the tables of docs/history.md.

`PYTHONPATH=tests python -m helpers.history_characteristics` prints them in about two minutes.
No device made these figures: nights scatter with heavy tails around their level, and one in thirty is disturbed by 5 % on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fusebench.stats.changepoint import divide, levels
from fusebench.stats.random_orders import RandomOrders
from fusebench.verdict.history.series import Figure, Series
from fusebench.verdict.history.shifts import DEFAULT_MARGIN, find_shifts, orders_needed

NIGHTS = 60
SCATTER = 0.004
"""Between nights: what an H200 shows between placements at 12 us, of which a night averages twelve."""
RATE = 0.05


def nightly(nights: int, generator: np.random.Generator, step_at: int = 0, factor: float = 1.0, scatter: float = SCATTER) -> list[float]:
    """Times of a kernel of 26 us, which from night `step_at` on takes `factor` times as long."""
    logs = scatter * generator.standard_t(5.0, nights)
    logs += (generator.random(nights) < 1 / 30) * generator.exponential(0.05, nights)
    logs[step_at:] += math.log(factor)
    found: list[float] = (26.0 * np.exp(logs)).tolist()
    return found


def share_found(after: int, factor: float, among: int, test: RandomOrders, *, trials: int = 300) -> float:
    """How often a step is called slower `after` nights later, where it is the only change among so many series."""
    found = 0
    for trial in range(trials):
        series = nightly(NIGHTS, np.random.default_rng([after, trial]), NIGHTS - after, factor)
        cuts = divide(series, test, level=RATE / among)
        found += any(point.change > 1 for point in levels(series, cuts, DEFAULT_MARGIN))
    return found / trials


def share_of_alarms(series: int, suites: int, margin: float, seed: int = 0) -> float:
    """How often a suite of steady series has any change point at all."""
    generator = np.random.default_rng(seed)
    test = RandomOrders(orders_needed(series, RATE))
    return (
        sum(any(track.shifts for track in find_shifts(_steady(series, generator), margin=margin, test=test)) for _ in range(suites))
        / suites
    )


def _steady(count: int, generator: np.random.Generator) -> Sequence[Series]:
    found = []
    for place in range(count):
        times = tuple(nightly(NIGHTS, generator))
        # The margin's floor of a clock tick is left out by times that are 1000 times as long.
        values = {"places": tuple(range(NIGHTS)), "values": times, "times_us": tuple(1e3 * time for time in times), "gating": True}
        found.append(Series(suite="s", case=f"c{place}", kernel="op/fused@1", figure=Figure.RAW, **values))  # type: ignore[arg-type]
    return found


def main() -> None:
    steps = (1.01, 1.02, 1.03, 1.05)
    for among in (30, 866):
        test = RandomOrders(orders_needed(among, RATE))
        print(f"\n| runs of the new level, among {among} series | " + " | ".join(f"{100 * (factor - 1):.0f} %" for factor in steps) + " |")
        print("|---" * (1 + len(steps)) + "|")
        for after in (5, 6, 7, 8, 10, 12, 15, 20, 30):
            cells = " | ".join(f"{100 * (share_found(after, factor, among, test)):.0f} %" for factor in steps)
            print(f"| {after} | {cells} |", flush=True)
    for margin in (1e-9, DEFAULT_MARGIN):
        print(
            f"\nalarms in suites of 30 steady series, margin {100 * margin:.1f} %: {100 * (share_of_alarms(30, 500, margin)):.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
