"""What a remeasurement promises, on processes that no device ran: one that is in a mode of its own accuses nobody, and what every process
finds slower stays found.

Each process runs a kernel in one of two modes, one in ten of them 4 % slower, as was seen on an H200; replicates scatter around that.
"""

from __future__ import annotations

import math
import random

import pytest

from fusebench.runner.run.looks import PROCESSES
from fusebench.schema import Estimate, VerdictKind
from fusebench.stats.paired import quotient, time_estimate
from fusebench.verdict.margins.rule import MarginRule

REPLICATES = 12
TIME_US = 12.0
PROCESS, REPLICATE = 0.0025, 0.007
"""Standard deviations of the log of a time: between processes, and between the replicates of one."""
SLOW_MODE, SLOW_SHARE = 0.04, 0.1
COMPARISONS = 2000


class Machine:
    """Times of one kernel, process by process."""

    def __init__(self, seed: int, slowdown: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.time_ns = 1000 * TIME_US * (1 + slowdown)

    def time_us(self, processes: int, *, modes: bool = True) -> Estimate:
        """As a record holds it, measured in so many processes."""
        spans: list[list[float]] = []
        for _ in range(processes):
            shift = self.rng.gauss(0.0, PROCESS) + (SLOW_MODE if modes and self.rng.random() < SLOW_SHARE else 0.0)
            spans += [[self.time_ns * math.exp(shift + self.rng.gauss(0.0, REPLICATE))] for _ in range(REPLICATES)]
        found = time_estimate(spans, 0.0, processes=[place // REPLICATES for place in range(len(spans))])
        return Estimate(found.value / 1e3, found.low / 1e3, found.high / 1e3, found.level)


def verdict(new: Estimate, old: Estimate) -> VerdictKind:
    return MarginRule().judge(quotient(new, old), new.value)[0]


def second_looks(seed: int, slowdown: float = 0.0) -> list[tuple[VerdictKind, VerdictKind]]:
    """Of every comparison with a baseline whose process was in no mode, the first verdict and the final one."""
    old, new = Machine(seed), Machine(seed + 1, slowdown)
    found = []
    for _ in range(COMPARISONS):
        baseline = old.time_us(1, modes=False)
        first = verdict(new.time_us(1), baseline)
        doubtful = first in (VerdictKind.REGRESSION, VerdictKind.UNDECIDED)
        found.append((first, verdict(new.time_us(PROCESSES), baseline) if doubtful else first))
    return found


def share(found: list[tuple[VerdictKind, VerdictKind]], place: int, kind: VerdictKind) -> float:
    return sum(one[place] is kind for one in found) / len(found)


def test_a_process_in_a_mode_of_its_own_accuses_nobody_after_a_second_look() -> None:
    found = second_looks(seed=11)
    assert 0.07 < share(found, 0, VerdictKind.REGRESSION) + share(found, 0, VerdictKind.UNDECIDED) < 0.13, "what one process says"
    assert share(found, 1, VerdictKind.REGRESSION) == 0.0
    assert share(found, 1, VerdictKind.UNDECIDED) < 0.03, "where several of the fresh ones are in that mode too"


@pytest.mark.parametrize(("slowdown", "fewest"), [(0.04, 0.95), (0.06, 0.99)])
def test_a_slowdown_of_every_process_stays_found(slowdown: float, fewest: float) -> None:
    found = second_looks(seed=21, slowdown=slowdown)
    assert share(found, 1, VerdictKind.PASS) == 0.0
    assert share(found, 1, VerdictKind.REGRESSION) >= fewest
