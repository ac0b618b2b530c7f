"""Measuring until pairs are decided: which arms are still called, and when it ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fusebench.errors import UsageError
from fusebench.registry import Collection, Kernel
from fusebench.schema import CacheState, SamplingPlan, VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.timing import placement, preparation
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.case_timings import CaseTimings
from fusebench.timing.measure import CODE, measure_case
from fusebench.timing.pairs import Pair
from fusebench.timing.placement import CONTROL, COPY, STREAM, ArmSpec, arm_specs

BASELINE, SLOW, EVEN = "scale/baseline@1", "slow", "even"
LOOKS = Plan()
PAIRS = (Pair("slow", new=SLOW, old="reference"), Pair("even", new=EVEN, old="reference"))


class ByName:
    """Answers with 20 us times the arm's factor, which may depend on the replicate."""

    name = "by_name"

    def __init__(self, factors: dict[str, Callable[[int], float]]) -> None:
        self.factors = factors
        self.replicates: list[set[str]] = []

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        number = len(self.replicates)
        self.replicates.append({arm.name for arm in calls})
        spans = [round(20_000 * self.factors.get(arm.name, lambda replicate: 1.0)(number)) for arm in calls]
        return [CallTiming(span_ns=span, busy_ns=span, kernels=1) for span in spans]


@pytest.fixture
def compared(
    toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CaseTimings]:
    monkeypatch.setattr(placement, "PADDING_LIMIT", 4096)
    baseline = make_kernel("baseline", lambda x, *, factor: None)
    op = toy.ops["scale"]

    def run(timer: Any, pairs: Sequence[Pair] = PAIRS, looks: Plan | None = LOOKS, **options: Any) -> CaseTimings:
        extra = [ArmSpec(name, baseline) for name in (SLOW, EVEN, "reference")]
        return measure_case(
            "suite:case", op, op.Params(size=16), arm_specs([baseline], baseline, extra), device=torch.device("cpu"),
            plan=make_plan(replicates=3), timer=timer, seed=1, pairs=pairs, looks=looks, **options,
        )  # fmt: skip

    return run


def wobble(factor: float, amount: float = 0.002) -> Callable[[int], float]:
    """`factor`, a little more in one replicate and a little less in the next."""
    return lambda replicate: factor * (1 + amount * (replicate % 3 - 1))


def test_decided_arms_are_left_out_yardsticks_and_control_stay_and_it_ends_when_all_is_decided(
    compared: Callable[..., CaseTimings],
) -> None:
    # Equal on average, but scattering so much that 12 replicates cannot say so.
    timer = ByName({SLOW: wobble(1.05), EVEN: lambda replicate: 1.0 + 0.007 * (-1) ** replicate})
    timings = compared(timer)
    assert timings.compared["slow"].finding.kind is VerdictKind.REGRESSION
    assert timings.compared["slow"].finding.replicates == 12
    assert timings.compared["even"].finding.kind is VerdictKind.PASS
    after = timings.compared["even"].finding.replicates
    assert len(timer.replicates) == after > 12
    always = {COPY, STREAM, BASELINE, CONTROL}
    assert all(arms == always | {SLOW, EVEN, "reference"} for arms in timer.replicates[:12])
    assert all(arms == always | {EVEN, "reference"} for arms in timer.replicates[12:])
    assert not timings.cut_short


def test_what_stays_unclear_ends_with_the_last_look(compared: Callable[..., CaseTimings]) -> None:
    timer = ByName({SLOW: lambda replicate: 1.004 + 0.02 * (-1) ** replicate})
    timings = compared(timer, PAIRS[:1], Plan(looks=(12, 18)))
    assert len(timer.replicates) == 18
    assert timings.compared["slow"].finding.kind is VerdictKind.UNDECIDED


def test_a_deadline_ends_it_and_says_so(compared: Callable[..., CaseTimings]) -> None:
    timer = ByName({})
    timings = compared(timer, deadline=time.monotonic() - 1)
    assert len(timer.replicates) == 2
    assert timings.cut_short
    assert timings.compared["slow"].finding.kind is VerdictKind.UNDECIDED


def test_pairs_that_are_decided_before_are_never_timed(compared: Callable[..., CaseTimings]) -> None:
    timer, seen = ByName({SLOW: wobble(1.05)}), Counter[str]()

    def known(arms: Sequence[Arm]) -> list[str]:
        seen.update(arm.name for arm in arms)
        return ["even"]

    timings = compared(timer, decided_before=known)
    assert set(timings.compared) == {"slow"}
    assert not any(EVEN in arms for arms in timer.replicates)
    assert seen[EVEN] == 1, "it was asked once, with every arm"


def test_where_all_is_decided_before_nothing_is_timed(compared: Callable[..., CaseTimings]) -> None:
    timer = ByName({})
    timings = compared(timer, decided_before=lambda arms: ["slow", "even"])
    assert (timer.replicates, timings.samples, timings.compared) == ([], [], {})


def test_arms_are_heard_once_before_anything_is_timed_also_where_nothing_is_judged(compared: Callable[..., CaseTimings]) -> None:
    timer, heard = ByName({}), []

    def hear(arms: Sequence[Arm]) -> list[str]:
        assert timer.replicates == [], "nothing was timed yet"
        heard.extend(arm.name for arm in arms)
        return []

    timings = compared(timer, pairs=(), looks=None, decided_before=hear)
    assert (len(timer.replicates), len(heard), len(set(heard))) == (3, 7, 7)
    assert CODE in timings.phases_s


def test_without_looks_the_plan_says_how_many_replicates_and_nothing_is_judged(compared: Callable[..., CaseTimings]) -> None:
    timer = ByName({SLOW: wobble(1.05)})
    timings = compared(timer, looks=None)
    assert len(timer.replicates) == 3
    assert timings.compared == {}


def test_a_pair_of_an_unknown_arm_is_refused(compared: Callable[..., CaseTimings]) -> None:
    with pytest.raises(UsageError, match="names the arm 'absent', which is not measured"):
        compared(ByName({}), [Pair("p", new="absent", old="reference")])


def test_an_arm_may_have_inputs_of_its_own(
    toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan]
) -> None:
    """A slowdown is planted by giving a kernel more rows."""
    sizes: dict[int, int] = Counter()
    kernel = make_kernel("spy", lambda x, *, factor: sizes.update([x.numel()]))
    op = toy.ops["scale"]
    specs = [ArmSpec("usual", kernel), ArmSpec("more", kernel, op.Params(size=20))]
    measure_case(
        "suite:case", op, op.Params(size=16), specs, device=torch.device("cpu"), plan=make_plan(), timer=ByName({}), seed=1
    )  # fmt: skip
    assert set(sizes) == {16, 20}


def test_pairs_are_measured_for_as_long_as_each_is_asked_for_and_nothing_is_judged(compared: Callable[..., CaseTimings]) -> None:
    timer = ByName({})
    heard: list[tuple[int, int]] = []
    timings = compared(timer, looks=None, lengths={"slow": 2, "even": 4}, on_replicate=lambda done, most: heard.append((done, most)))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)], "progress is a part of the longest pair"
    always = {COPY, STREAM, BASELINE, CONTROL}
    assert timer.replicates == [always | {SLOW, EVEN, "reference"}] * 2 + [always | {EVEN, "reference"}] * 2
    assert timings.compared == {}
    assert Counter(sample.arm for sample in timings.samples)[EVEN] == 2 * Counter(sample.arm for sample in timings.samples)[SLOW]


@pytest.mark.parametrize("cache", [CacheState.COLD, CacheState.WARM])
def test_a_pair_lies_in_the_same_buffers_unless_its_arms_would_warm_them_for_one_another(
    toy: Collection,
    make_kernel: Callable[..., Kernel],
    make_plan: Callable[..., SamplingPlan],
    cache: CacheState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "make_evictor", lambda device: lambda: None)
    called, addresses = "", dict[str, list[int]]()

    def announce(name: str) -> None:
        nonlocal called
        called = name

    kernel = make_kernel("baseline", lambda x, *, factor: addresses.setdefault(called, []).append(x.data_ptr()))
    op = toy.ops["scale"]
    extra = [ArmSpec(name, kernel, op.Params(size=20) if name == "slow" else None) for name in ("slow", "reference", "alone")]
    pairs = [Pair("p", new=BASELINE, old="reference"), Pair("q", new="slow", old="reference")]
    for number in (1, 2):
        measure_case(
            "suite:case", op, op.Params(size=16), arm_specs([kernel], kernel, extra), device=torch.device("cpu"), on_call=announce,
            plan=make_plan(replicates=1, cache=cache), timer=ByName({}), seed=number, pairs=pairs[:number],
        )  # fmt: skip
        placed = {name: found[0] for name, found in addresses.items()}
        together = [{placed[name] for name in (BASELINE, "reference", CONTROL)}, {placed["slow"], placed["reference"]}, {placed["alone"]}]
        if cache is CacheState.COLD:
            assert [len(group) for group in together] == [1, 2 if number == 1 else 1, 1]
            assert placed["alone"] not in together[0] | together[1]
        else:
            assert len(set(placed.values())) == len(placed) == 5
        addresses.clear()
