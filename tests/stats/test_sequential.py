from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fusebench.schema import VerdictKind
from fusebench.stats.sequential import Plan, detectable_change, judge, repeated_interval, replicates_needed

PLAN = Plan()


def logs(change: float, count: int = 96, scatter: float = 0.004, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(math.log1p(change), scatter, count).tolist()


@pytest.mark.parametrize(
    ("change", "kind"), [(0.02, VerdictKind.REGRESSION), (1 / 1.02 - 1, VerdictKind.IMPROVEMENT), (0.0, VerdictKind.PASS)]
)
def test_clear_cases_are_decided_and_stop(change: float, kind: VerdictKind) -> None:
    finding = judge(logs(change), 12.0)
    assert finding.kind is kind
    assert finding.next_look is None
    assert finding.replicates < 64
    assert finding.change.low <= 1 + change <= finding.change.high


@pytest.mark.parametrize("change", [0.02, -0.02, 0.0, 0.004])
def test_a_verdict_is_the_position_of_the_interval_that_it_shows(change: float) -> None:
    for seed in range(50):
        finding = judge(logs(change, seed=seed), 12.0)
        low, high, margin = finding.change.low, finding.change.high, finding.margin
        if finding.kind is VerdictKind.REGRESSION:
            assert low > 1 + margin
        elif finding.kind is VerdictKind.IMPROVEMENT:
            assert high < 1 / (1 + margin)
        elif finding.kind is VerdictKind.PASS:
            assert 1 / (1 + margin) <= low <= high <= 1 + margin


def test_looks_are_taken_when_they_are_due_and_not_between() -> None:
    values = logs(0.004)
    assert (judge(values[:11], 12.0).replicates, judge(values[:11], 12.0).next_look) == (0, 12)
    assert judge(values[:11], 12.0).change.high == math.inf
    assert math.isnan(judge([], 12.0).change.value)
    between = judge(values[:17], 12.0)
    assert (between.replicates, between.next_look) == (12, 18)
    assert between == judge(values[:12], 12.0)
    assert judge(values, 12.0).next_look is None
    assert "the plan's last look is taken" in judge(values, 12.0).reason


def test_what_was_decided_stays_decided_whatever_comes_after() -> None:
    slow = logs(0.03, 12)
    assert judge(slow + logs(-0.05, 52), 12.0) == judge(slow, 12.0)
    assert judge(slow, 12.0).kind is VerdictKind.REGRESSION


def test_swapping_the_arms_mirrors_the_finding() -> None:
    for seed in range(20):
        values = logs(0.012, seed=seed)
        finding, mirrored = judge(values, 12.0), judge([-value for value in values], 12.0)
        assert (finding.kind, mirrored.kind) == (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)
        assert (finding.p_slower, finding.replicates) == (mirrored.p_faster, mirrored.replicates)
        assert finding.change.low == pytest.approx(1 / mirrored.change.high)


def test_the_floor_is_a_tick_of_the_clock() -> None:
    assert PLAN.margin_at(12.0) == 0.004
    assert PLAN.margin_at(3.2) == pytest.approx(0.01)
    assert judge(logs(0.008, scatter=0.001), 12.0).kind is VerdictKind.REGRESSION
    assert judge(logs(0.008, scatter=0.001), 3.2).kind is VerdictKind.PASS


def test_looking_often_costs_no_false_findings_and_would_without_the_split() -> None:
    """2 000 comparisons whose true change is the margin itself, the worst case; a plan that spends its whole level at every look is
    the planted defect."""
    generator = np.random.default_rng(5)
    alarms = peeking = passed = 0
    for _ in range(2000):
        values = generator.normal(math.log1p(PLAN.margin), 0.0056, PLAN.looks[-1])
        finding = judge(values, 12.0)
        alarms += finding.kind is VerdictKind.REGRESSION
        passed += finding.kind is VerdictKind.PASS
        peeking += any(judge(values[:look], 12.0, Plan(looks=(look,))).kind is VerdictKind.REGRESSION for look in PLAN.looks)
    assert alarms <= binom.ppf(0.999, 2000, PLAN.alarm_level)
    assert passed <= binom.ppf(0.999, 2000, PLAN.pass_level)
    assert peeking > binom.ppf(0.999, 2000, PLAN.alarm_level)


def test_intervals_cover_at_every_look_together() -> None:
    generator = np.random.default_rng(6)
    missed = 0
    for _ in range(1000):
        values = generator.standard_t(3, PLAN.looks[-1])
        found = [repeated_interval(values[:look], 0.025, len(PLAN.looks)) for look in PLAN.looks]
        missed += any(not one.low <= 1.0 <= one.high for one in found)
    assert missed <= binom.ppf(0.999, 1000, 0.05)
    assert found[0].level == 0.95


@pytest.mark.parametrize(("time_us", "scatter"), [(12.0, 0.0056), (125.0, 0.0035), (2.8, 0.012)])
def test_the_planning_formula_says_what_is_found(time_us: float, scatter: float) -> None:
    visible = detectable_change(scatter, time_us)
    generator = np.random.default_rng(7)
    found = sum(
        judge(generator.normal(math.log1p(visible), scatter, PLAN.looks[-1]), time_us).kind is VerdictKind.REGRESSION for _ in range(600)
    )
    # Earlier looks add to the last look's power, for which the formula stands.
    assert found >= binom.ppf(0.001, 600, 0.95)
    less = PLAN.margin_at(time_us) + 0.6 * (visible - PLAN.margin_at(time_us))
    generator = np.random.default_rng(8)
    found = sum(
        judge(generator.normal(math.log1p(less), scatter, PLAN.looks[-1]), time_us).kind is VerdictKind.REGRESSION for _ in range(600)
    )
    assert found < binom.ppf(0.001, 600, 0.95)


def test_the_default_plan_reaches_its_targets_on_paper() -> None:
    """1 % at 10 us and longer and 2 % from 2.8 us on, at the largest scatter measured there, within the plan's replicates."""
    assert replicates_needed(0.01, 0.0056, 10.0) <= PLAN.looks[-1]
    assert replicates_needed(0.02, 0.012, 2.8) <= PLAN.looks[-1]
    assert replicates_needed(0.004, 0.0056, 12.0) is None
    assert detectable_change(0.0056, 12.0, replicates=28) > detectable_change(0.0056, 12.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"looks": ()},
        {"looks": (12, 12)},
        {"looks": (18, 12)},
        {"alarm_level": 0.0},
        {"pass_level": 0.5},
        {"margin": 0.0},
        {"margin": math.nan},
        {"floor_us": -1.0},
        {"looks": (4, 6)},
    ],
)
def test_refuses_plans_that_decide_nothing(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|levels|never reach"):
        Plan(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive duration"):
        PLAN.margin_at(0.0)


def test_a_number_of_replicates_beyond_any_float_overflows_nothing() -> None:
    """A record that somebody altered may hold one."""
    assert Plan(looks=(12, 10**400)).looks[-1] == 10**400
