"""How long a selection takes, reckoned from a stored run, and whether a budget suffices for it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import RunRecordError
from ...schema import Case, Run, SamplingPlan
from ...store.finding import run_folders
from ...store.run_folder import read_run
from ...timing.measure import PLACING, TIMING
from ..case_kernels import Kernels
from ..context import AHEAD, CHECK
from .precision import LOOKS

START_S = 3.0
"""Seconds of a case of few bytes, where no stored run knows better: a nightly of 142 cases takes an H200 12 minutes."""
MOST_READ = 5
"""Stored runs that are looked at for the seconds of their cases."""
SECONDS_PER_GB = 8.0
"""Seconds more per 1e9 bytes that its op must move: inputs are made, checked in float64 and moved in all rounds."""
SPARE = 1.1
"""Factor of the reckoned seconds in the budget that a message names."""
_OUT_OF_BUDGET = "the budget ended"
"""In the warnings of a run that a budget made thin; its seconds are those of no plan."""


class Reckoning(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds that a run is expected to take, without confirmation."""

    cases: Mapping[str, float]
    """By key, the seconds on one board of the first case of each work."""
    ahead_s: float
    """Of checks and compilation in several processes, before the first case; part of no case."""
    boards: int
    source: str
    """What the seconds are reckoned from, in words."""

    @property
    def total_s(self) -> float:
        return (self.ahead_s + math.fsum(self.cases.values())) / self.boards

    def fits(self, budget_s: float) -> bool:
        """Whether the budget suffices for the whole plan."""
        return self.total_s <= budget_s

    def allowance(self, key: str, later: Collection[str], left_s: float) -> float:
        """The seconds that a case may take: all that the cases after it leave, and at least its share of the rest in proportion.

        So a budget that suffices is a deadline, and one that does not leaves every case its part.

        Args:
            later: keys of the cases after it.
            left_s: the rest of the budget.
        """
        own, rest = self.cases.get(key, 0.0), math.fsum(self.cases.get(one, 0.0) for one in later) / self.boards
        share = left_s * own / (own + rest) if own > 0 else left_s / (1 + len(later) / self.boards)
        return max(share, left_s - rest)

    def shortage(self, budget_s: float, plan: SamplingPlan) -> str:
        """What a budget that does not suffice costs, and what to ask for instead."""
        fewer = "--processes 1 or fewer --replicates" if plan.processes > 1 else "fewer --replicates"
        enough = math.ceil(SPARE * self.total_s / 10) * 10
        parts = max(2, math.ceil(SPARE * self.total_s / budget_s))
        return (
            f"the budget of {budget_s:g} s is too small for {len(self.cases)} cases with {words_of_plan(plan)}: expected are "
            f"{self.total_s:.0f} s ({self.source}). Each case gets its part of the budget, with fewer placements and processes, and "
            f"nothing is checked ahead. For the whole plan leave out --budget or pass --budget {enough}; "
            f"for less work at a time pass {fewer}, or --shard 1/{parts} to {parts}/{parts} in {parts} runs and `fusebench join`"
        )


def words_of_plan(plan: SamplingPlan) -> str:
    """`2 processes of 4 placements`."""
    processes = f"{LOOKS[0]} to {LOOKS[-1]}" if plan.precision is not None else f"{plan.processes}"
    return f"{processes} process{'es' if processes != '1' else ''} of {plan.replicates} placements"


def reckon(cases: Sequence[Case], collection: Kernels, known: Run | None, plan: SamplingPlan, *, boards: int = 1) -> Reckoning:
    """The seconds of the cases with this plan.

    The known run's phases are taken apart: timed rounds and placements grow with their number, checks do not, and the rest grows with the
    number of processes.

    Args:
        known: a run of the same device model (`measured_before`); None reckons by bytes, which is rough.
    """
    firsts = [same[0] for same in works_of(cases, collection).values()]
    weights = expected_seconds(firsts, collection, known)
    scale, ahead_s, source = (
        float(_processes(plan)),
        0.0,
        "roughly, by the cases' bytes: no run is stored",
    )
    if known is not None and known.spending is not None:
        theirs = [same[0] for same in works_of([one.case for one in known.cases if one.case.op in collection.ops], collection).values()]
        all_of_it = math.fsum(expected_seconds(theirs, collection, known).values()) or 1.0
        phases = known.spending.phases_s
        checks, ahead = phases.get(CHECK, 0.0), phases.get(AHEAD, 0.0)
        rounds = phases.get(TIMING, 0.0) + phases.get(PLACING, 0.0)
        processes = math.fsum(phases.values()) - checks - ahead - rounds
        more = _processes(plan) / _processes(known.plan)
        calls = more * plan.replicates * plan.rounds / (known.plan.replicates * known.plan.rounds)
        scale = (checks + processes * more + rounds * calls) / all_of_it
        ahead_s = ahead * math.fsum(weights.values()) / all_of_it
        source = f"from run {known.id}, with {words_of_plan(known.plan)}"
    return Reckoning(cases={key: scale * one for key, one in weights.items()}, ahead_s=ahead_s, boards=boards, source=source)


def _processes(plan: SamplingPlan) -> int:
    return LOOKS[0] if plan.precision is not None else plan.processes


def measured_before(runs: Path, device_name: str, baseline: Run | None) -> Run | None:
    """The newest whole run of the device model in the folder `runs`, else the baseline; None without either."""
    found = newest_run(runs, device_name, whole=True)
    return found or (baseline if baseline is not None and baseline.spending is not None else None)


def works_of(cases: Sequence[Case], collection: Kernels) -> dict[Hashable, list[Case]]:
    """The cases by their work, in their order."""
    found: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        found[case.op, collection.op(case.op, where=f"case {case.key}").facts(case.params).params].append(case)
    return found


def expected_seconds(cases: Sequence[Case], collection: Kernels, known: Run | None) -> dict[str, float]:
    """By key, the seconds that a case is expected to take: as `known`, a stored run, measured it, else by its bytes."""
    measured: Mapping[str, float] = {
        one.case.key: one.seconds for one in (known.cases if known is not None else ()) if one.seconds is not None and not one.same_as
    }

    def by_bytes(case: Case) -> float:
        return START_S + SECONDS_PER_GB * collection.op(case.op).facts(case.params).minimum_bytes / 1e9

    return {case.key: measured.get(case.key) or by_bytes(case) for case in cases}


def newest_run(runs: Path, device_name: str, *, whole: bool = False) -> Run | None:
    """The newest readable run of the device model in the folder `runs`, by which leases are planned where there is no baseline.

    Args:
        whole: pass over runs that were stopped, or that a budget made thin.
    """
    for folder in reversed(run_folders(runs)[-MOST_READ:]):
        with suppress(RunRecordError):
            found = read_run(folder)
            cut_short = not found.complete or any(_OUT_OF_BUDGET in text for text in found.warnings)
            told = found.environment.device_name == device_name and any(one.seconds is not None for one in found.cases)
            if told and not (whole and cut_short):
                return found
    return None
