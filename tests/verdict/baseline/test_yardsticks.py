"""What the streams of many cases say of a machine that became faster or slower, and when they are asked."""

from __future__ import annotations

import math
import random
import statistics
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.schema import Estimate, Result, Run, VerdictKind
from fusebench.verdict.baseline.judgement import Judgement, judge_each
from fusebench.verdict.baseline.yardsticks import FEWEST_CASES, LaunchGaps, drift_of, relative_to_machine, yardstick_drifts
from fusebench.verdict.margins.rule import MarginRule

CASES = tuple(f"case_{number}" for number in range(9))


@pytest.fixture
def make(synthetic: ModuleType) -> Any:
    return lambda **options: synthetic.make_run(**({"cases": CASES} | options))


def moved(run: Run, factors: dict[str, float], *, copy: bool = False) -> Run:
    """The run with the streams (and copies) of these cases slower by such factors."""

    def scaled(time: Estimate | None, factor: float) -> Estimate | None:
        return time and Estimate(time.value * factor, time.low * factor, time.high * factor)

    cases = []
    for summary in run.cases:
        factor = factors.get(summary.case.name, 1.0)
        copy_us = scaled(summary.copy_us, factor) if copy else summary.copy_us
        cases.append(msgspec.structs.replace(summary, stream_us=scaled(summary.stream_us, factor), copy_us=copy_us))
    return msgspec.structs.replace(run, cases=cases)


def alike(run: Run) -> Run:
    """All cases of one duration."""
    return msgspec.structs.replace(run, cases=[msgspec.structs.replace(one, stream_us=run.cases[0].stream_us) for one in run.cases])


def at(judgements: list[Judgement], case: str, kernel: str) -> Judgement:
    return next(one for one in judgements if (one.case, one.kernel) == (case, kernel))


def test_the_drift_is_themedian_of_logs_of_the_streams_with_the_sign_tests_interval(make: Any) -> None:
    factors = {name: 1.0 + 0.01 * number for number, name in enumerate(CASES)}
    ((duration, drift),) = yardstick_drifts(moved(make(), factors), make()).items()
    assert drift.cases == 9
    assert (drift.factor.value, drift.factor.low, drift.factor.high) == pytest.approx((1.04, 1.01, 1.07)), "of nine, the second and eighth"
    assert drift_of(make().cases[0], {duration: drift}) is drift
    assert drift_of(msgspec.structs.replace(make().cases[0], stream_us=None), {duration: drift}) is None


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    from fusebench.verdict.baseline.yardsticks import median_of_logs

    generator = random.Random(5)
    for count in (8, 20, 43):
        held = [
            (found := median_of_logs([generator.gauss(0.0, 0.02) for _ in range(count)])).low <= 1.0 <= found.high and found.level == 0.95
            for _ in range(2000)
        ]
        assert 0.94 < statistics.mean(held) < 0.997
    assert median_of_logs([0.1] * 5).low == 0.0, "five cannot say so much"
    assert median_of_logs([0.1] * 5).high == math.inf


def test_too_few_cases_other_work_and_repeats_make_no_drift(make: Any) -> None:
    few = make(cases=CASES[: FEWEST_CASES - 1])
    assert yardstick_drifts(few, make()) == {}
    assert yardstick_drifts(make(params={"tokens": 2048}), make()) == {}
    repeated = [msgspec.structs.replace(one, same_as="elsewhere") if one.case.name in CASES[:2] else one for one in make().cases]
    assert yardstick_drifts(msgspec.structs.replace(make(), cases=repeated), make()) == {}
    assert yardstick_drifts(make(copy=False), make()) == {}
    warm = [msgspec.structs.replace(one, not_cold="it moved 9 TB/s") if one.case.name == CASES[0] else one for one in make().cases]
    for sides in ((msgspec.structs.replace(make(), cases=warm), make()), (make(), msgspec.structs.replace(make(), cases=warm))):
        assert yardstick_drifts(*sides) == {}, "a stream that was not cold says nothing of cold ones"


def launched(run: Run, shape: str) -> Run:
    return msgspec.structs.replace(run, cases=[msgspec.structs.replace(one, stream_shape=shape) for one in run.cases])


def test_streams_that_were_launched_differently_are_two_yardsticks(make: Any) -> None:
    """A faster launch of the yardstick would accuse every kernel."""
    old = make()
    assert len(yardstick_drifts(launched(make(), "a"), launched(make(), "a"))) == 1
    assert yardstick_drifts(launched(make(), "a"), old) == {}
    faster = launched(moved(make(), dict.fromkeys(CASES, 0.9)), "tiles of 512 words")
    faster = msgspec.structs.replace(faster, cases=[msgspec.structs.replace(one, copy_us=None) for one in faster.cases])
    judgements = judge_each(faster, old, MarginRule())
    assert {one.verdict.kind for one in judgements} == {VerdictKind.PASS}
    assert not any("streaming yardstick" in one.verdict.reason for one in judgements)


def test_of_the_fewest_cases_one_stream_that_scatters_does_not_widen_every_verdict(make: Any) -> None:
    """Of eight streams the interval reaches to the smallest and the largest, and unchanged kernels stayed undecided."""
    few = CASES[:FEWEST_CASES]
    run = moved(make(cases=few), {few[0]: 1.05, few[1]: 0.95})
    assert {one.verdict.kind for one in judge_each(run, make(cases=few), MarginRule())} == {VerdictKind.PASS}


def test_a_stream_that_scatters_in_one_case_accuses_and_praises_nobody(make: Any) -> None:
    for factor in (0.9, 1.1):
        judgements = judge_each(moved(make(), {CASES[4]: factor}), make(), MarginRule())
        assert {one.verdict.kind for one in judgements} == {VerdictKind.PASS}
        assert judgements[0].verdict.reason.startswith("relative to the streaming yardsticks of 9 cases: ")


def test_a_slower_machine_accuses_nobody_and_a_kernel_that_is_slower_still_is_found(make: Any, synthetic: ModuleType) -> None:
    slow = {(case, kernel): 1.2 for case in CASES for kernel in synthetic.KERNELS} | {(CASES[2], synthetic.FUSED): 1.2 * 1.05}
    run = moved(make(slow=slow), dict.fromkeys(CASES, 1.2), copy=True)
    judgements = judge_each(run, make(), MarginRule())
    found = at(judgements, CASES[2], synthetic.FUSED)
    assert found.verdict.kind is VerdictKind.REGRESSION
    assert found.verdict.change is not None
    assert found.verdict.change.value == pytest.approx(1.05)
    assert {one.verdict.kind for one in judgements if one is not found} == {VerdictKind.PASS}


def test_a_disturbed_case_is_told_by_its_own_stream(make: Any, synthetic: ModuleType) -> None:
    slow = {(CASES[2], kernel): 1.1 for kernel in synthetic.KERNELS}
    judgements = judge_each(moved(make(slow=slow), {CASES[2]: 1.1}, copy=True), make(), MarginRule())
    found = at(judgements, CASES[2], synthetic.FUSED).verdict
    assert found.kind is VerdictKind.PASS
    assert found.reason.startswith("relative to the streaming yardstick +0.0 %")
    assert "unchanged, so what moved is not this kernel (relative to the streaming yardsticks of 9 cases: +10.0 %" in found.reason


def test_a_kernel_that_is_slower_in_its_own_case_is_found_with_the_streams(make: Any, synthetic: ModuleType) -> None:
    for factor, kind in ((1.04, VerdictKind.REGRESSION), (1 / 1.04, VerdictKind.IMPROVEMENT), (1.01, VerdictKind.PASS)):
        judgements = judge_each(make(slow={(CASES[7], synthetic.FUSED): factor}), make(), MarginRule())
        assert at(judgements, CASES[7], synthetic.FUSED).verdict.kind is kind


def test_what_slows_kernels_and_streams_but_not_copies_is_undecided(make: Any, synthetic: ModuleType) -> None:
    slow = {(case, kernel): 1.08 for case in CASES for kernel in synthetic.KERNELS}
    found = at(judge_each(moved(make(slow=slow), dict.fromkeys(CASES, 1.08)), make(), MarginRule()), CASES[0], synthetic.FUSED).verdict
    assert found.kind is VerdictKind.UNDECIDED
    assert "slower, and the streaming yardsticks of 9 cases with it" in found.reason


def test_each_pair_of_boards_with_enough_cases_has_a_drift_of_its_own(synthetic: ModuleType) -> None:
    names = tuple(f"case_{number}" for number in range(2 * FEWEST_CASES))

    def on_boards(run: Run, first: int) -> Run:
        cases = [msgspec.structs.replace(one, board="A" if place < first else "B") for place, one in enumerate(run.cases)]
        return msgspec.structs.replace(run, cases=cases)

    baseline = alike(synthetic.make_run(cases=names))
    run = moved(baseline, dict.fromkeys(names[FEWEST_CASES:], 0.98))
    drifts = yardstick_drifts(on_boards(run, FEWEST_CASES), baseline)
    by_board = {boards: drift.factor.value for (_, boards), drift in ((key, one) for key, one in drifts.items() if isinstance(key, tuple))}
    assert by_board == pytest.approx({("A", ""): 1.0, ("B", ""): 0.98})
    new, old = on_boards(run, FEWEST_CASES).cases[-1], baseline.cases[-1]
    found = drift_of(new, drifts, old)
    assert found is not None
    assert found.factor.value == pytest.approx(0.98), "the faster board's own"
    few = on_boards(run, FEWEST_CASES + 1)
    found = drift_of(few.cases[-1], yardstick_drifts(few, baseline), baseline.cases[-1])
    assert found is not None
    assert found.cases == 2 * FEWEST_CASES, "too few of this board: the common one"


def test_the_launch_gap_is_that_of_the_language_and_of_the_processes_that_timed_the_call(synthetic: ModuleType) -> None:
    """Suspects' fresh processes have launch gaps of their own, and torch's launches others than Triton's."""
    names = tuple(f"case_{number}" for number in range(2 * FEWEST_CASES))
    torch, triton = f"{synthetic.OP}/split_torch@1", synthetic.BASELINE
    short = {(name, kernel): share for name in names for kernel, share in ((torch, 0.07), (triton, 0.3))}
    baseline = alike(synthetic.make_run(cases=names, slow=short))
    gaps_us = {(torch, False): 0.05, (torch, True): 0.3, (triton, False): -0.1, (triton, True): 0.2}

    def with_gap(one: Result) -> Result:
        fresh = one.case in names[:FEWEST_CASES]
        timing = one.measurement
        if timing is None or (one.kernel, fresh) not in gaps_us:
            return one
        time_us = timing.time_us.value + gaps_us[one.kernel, fresh] * (timing.kernels - 1)
        looks, processes = (3, 4) if fresh else (1, 1)
        timing = msgspec.structs.replace(timing, time_us=synthetic.near(time_us, 0.004), looks=looks, processes=processes)
        return msgspec.structs.replace(one, measurement=timing)

    run = msgspec.structs.replace(baseline, results=[with_gap(one) for one in baseline.results])
    drifts = yardstick_drifts(run, baseline)
    gaps = LaunchGaps(run, baseline, drifts)
    for new, old in zip(run.results, baseline.results, strict=True):
        gap, drift = gaps.of(new), drift_of(run.cases[0], drifts)
        if (new.kernel, True) not in gaps_us:
            continue
        assert gap is not None
        assert drift is not None
        assert new.measurement is not None
        assert old.measurement is not None
        assert gap.change_us == pytest.approx(gaps_us[new.kernel, new.measurement.looks > 1])
        assert relative_to_machine(new.measurement, old.measurement, drift, gap) == pytest.approx(1.0, abs=1e-6)
    single = next(one for one in run.results if one.kernel == synthetic.FUSED)
    assert gaps.of(single) is None, "a call of one launch has no gap"


def test_processes_of_few_calls_take_the_gap_of_their_language_and_a_language_of_few_that_of_all(synthetic: ModuleType) -> None:
    names = tuple(f"case_{number}" for number in range(FEWEST_CASES))
    torch, triton = f"{synthetic.OP}/split_torch@1", synthetic.BASELINE
    short = {(name, kernel): share for name in names for kernel, share in ((torch, 0.07), (triton, 0.3))}
    baseline = alike(synthetic.make_run(cases=names, slow=short))

    def remeasured(one: Result) -> Result:
        timing = one.measurement
        if timing is None or (one.case, one.kernel) != (names[0], triton):
            return one
        return msgspec.structs.replace(one, measurement=msgspec.structs.replace(timing, looks=2, processes=2))

    run = msgspec.structs.replace(baseline, results=[remeasured(one) for one in baseline.results])
    first = next(one for one in run.results if one.kernel == triton)
    drifts = yardstick_drifts(run, baseline)
    gap = LaunchGaps(run, baseline, drifts).of(first)
    assert gap is not None
    assert gap.calls == FEWEST_CASES
    fewer = msgspec.structs.replace(run, results=[one for one in run.results if one is first or one.kernel != triton])
    gap = LaunchGaps(fewer, baseline, drifts).of(first)
    assert gap is not None
    assert gap.calls == FEWEST_CASES + 1, "torch's and its own"
