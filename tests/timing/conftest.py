"""The toy op on the CPU, and a timer that does what a test's script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from fusebench.registry import Collection, Kernel, Op, load_collection
from fusebench.schema import CacheState, Close, KernelId, Language, Role, SamplingPlan
from fusebench.timing.arm import Arm, CallTiming, Timer
from fusebench.timing.case_timings import CaseTimings
from fusebench.timing.measure import measure_case
from fusebench.timing.placement import arm_specs


@pytest.fixture(scope="session")
def toy() -> Collection:
    """The op `scale`: multiplies a vector in place; `scale/split@1` returns a new tensor."""
    return load_collection([Path(__file__).parents[1] / "toy_project" / "kernels"], entry_points=False)


@pytest.fixture
def make_kernel(toy: Collection) -> Callable[..., Kernel]:
    """`make_kernel(name, function)`: a kernel of `scale`."""

    def make(name: str, function: Callable[..., object], op: Op | None = None) -> Kernel:
        made = Kernel(
            function, KernelId("scale", name, 1), role=Role.FUSED, language=Language.TORCH, contract=Close(), requires=(), note=""
        )
        made.op = op or toy.ops["scale"]
        return made

    return make


@pytest.fixture
def make_plan() -> Callable[..., SamplingPlan]:
    """`make_plan(replicates, rounds)`: warm unless `cache` says otherwise, so that nothing large is read."""

    def make(replicates: int = 2, rounds: int = 4, cache: CacheState = CacheState.WARM) -> SamplingPlan:
        return SamplingPlan(replicates=replicates, rounds=rounds, cache=cache, trim=0.0)

    return make


@pytest.fixture
def measured_cold() -> Callable[..., CaseTimings]:
    """`measured_cold(timer, tokens, rounds)`: the split chain of qknorm_rope and what is always timed beside it, on a GPU."""

    def measured(timer: Timer, tokens: int = 512, rounds: int = 4) -> CaseTimings:
        collection = load_collection([Path(__file__).parents[2] / "kernels"], entry_points=False)
        op, baseline = collection.op("qknorm_rope"), collection.kernel("qknorm_rope/split_triton@1")
        params = op.parse_params({"tokens": tokens, "heads": 24, "head_dim": 128, "layout": "interleaved"})
        plan = SamplingPlan(replicates=2, rounds=rounds, cache=CacheState.COLD, trim=0.1)
        return measure_case("s:c", op, params, arm_specs([], baseline), device=torch.device("cuda:0"), plan=plan, timer=timer, seed=1)

    return measured


class ScriptedTimer:
    """Makes every call, and answers with `kernels(attempt, index)` activities for call `index` of the attempt (from 0)."""

    name = "scripted"

    def __init__(self, kernels: Callable[[int, int], int] = lambda attempt, index: 1) -> None:
        self.kernels = kernels
        self.attempts = 0
        self.log: list[str] = []
        """What happened, in order: `prepare NAME`, whatever a test adds, `begin NAME`, `end NAME`."""

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        timings = []
        for index, arm in enumerate(calls):
            self.log.append(f"prepare {arm.name}")
            prepare(arm)
            self.log.append(f"begin {arm.name}")
            arm.call()
            self.log.append(f"end {arm.name}")
            timings.append(CallTiming(span_ns=1000 + index, busy_ns=900, kernels=self.kernels(self.attempts, index)))
        self.attempts += 1
        return timings


@pytest.fixture
def scripted_timer() -> type[ScriptedTimer]:
    return ScriptedTimer
