"""Replicates until speedups are known: where it looks, what counts, and that it ends."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.schema import CacheState, Role, Sample, SamplingPlan
from fusebench.timing.placement import CONTROL, ArmSpec
from fusebench.timing.precision import MOST_REPLICATES, Precision

PLAN = SamplingPlan(replicates=12, rounds=4, cache=CacheState.COLD, trim=0.1, precision=0.002)


def spec(name: str, role: Role) -> ArmSpec:
    kernel: Any = SimpleNamespace(id=name, role=role)
    return ArmSpec(name, kernel)


BASELINE, FUSED, EAGER = spec("split", Role.SPLIT), spec("fused", Role.FUSED), spec("eager", Role.COMPILED)
ARMS = [ArmSpec("copy", None), BASELINE, ArmSpec(CONTROL, BASELINE.kernel), FUSED, EAGER]


def replicate(number: int, rng: random.Random, scatter: dict[str, float]) -> list[Sample]:
    """One replicate in which the time of `arm` scatters by `scatter[arm]`."""
    samples = []
    for arm in ("split", CONTROL, "fused", "eager"):
        time = 20_000 * (1 + rng.gauss(0.0, scatter.get(arm, 0.0)))
        samples += [
            Sample(case="s:c", arm=arm, replicate=number, round=each, position=0, span_ns=round(time), busy_ns=round(time), kernels=1)
            for each in range(4)
        ]
    return samples


def taken(specs: list[ArmSpec], plan: SamplingPlan, **scatter: float) -> int:
    """Replicates that a case with these scatters ends after."""
    rng, precision = random.Random(5), Precision(specs, plan)
    for number in range(precision.replicates):
        precision.add(replicate(number, rng, scatter))
        if precision.over:
            return number + 1
    return precision.replicates


def test_a_quiet_case_ends_at_the_first_look() -> None:
    assert taken(ARMS, PLAN, fused=0.001) == 12


def test_a_noisy_case_takes_more_replicates_and_looks_seldom() -> None:
    assert taken(ARMS, PLAN, fused=0.005) in (18, 27, 41)


def test_a_case_that_is_too_noisy_ends_all_the_same() -> None:
    assert taken(ARMS, PLAN, fused=0.1) == MOST_REPLICATES


def test_only_fused_kernels_count_where_there_are_any() -> None:
    assert taken(ARMS, PLAN, eager=0.1) == 12
    assert taken([arm for arm in ARMS if arm is not FUSED], PLAN, eager=0.1) == MOST_REPLICATES


@pytest.mark.parametrize("specs", [ARMS, [BASELINE, ArmSpec(CONTROL, BASELINE.kernel)]])
def test_without_a_precision_or_anything_to_compare_the_plan_decides(specs: list[ArmSpec]) -> None:
    plan = PLAN if len(specs) == 2 else msgspec.structs.replace(PLAN, precision=None)
    assert Precision(specs, plan).replicates == 12
    assert taken(specs, plan, fused=0.1) == 12
