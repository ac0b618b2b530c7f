from __future__ import annotations

import math
import random

import pytest

from fusebench.runner.ab.strategy import default_looks
from fusebench.schema import Estimate, VerdictKind
from fusebench.stats.paired import describe_change, ratio_estimate
from fusebench.verdict.margins.rule import MarginRule


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (1.031, 1.06, VerdictKind.REGRESSION),
        (1.029, 1.06, VerdictKind.UNDECIDED),
        (0.98, 1.02, VerdictKind.PASS),
        (0.96, 1.02, VerdictKind.PASS),
        (0.60, 1.029, VerdictKind.PASS),
        (0.60, 1.031, VerdictKind.UNDECIDED),
        (0.90, 0.97, VerdictKind.IMPROVEMENT),
        (0.90, 1.10, VerdictKind.UNDECIDED),
        (0.0, math.inf, VerdictKind.UNDECIDED),
    ],
)
def test_a_change_needs_the_whole_interval_beyond_its_limit_and_a_pass_below_the_slower(low: float, high: float, kind: VerdictKind) -> None:
    value = math.sqrt(low * high) if low > 0 else 1.2
    found, reason, maybe_faster = MarginRule(0.03).judge(Estimate(value, low, high), 30.0)
    assert found is kind
    assert "3.0 %" in reason
    assert maybe_faster == ("not slower" in reason) == (kind is VerdictKind.PASS and low < 0.97)


def test_a_change_of_a_few_clock_ticks_is_no_regression() -> None:
    slower = Estimate(1.05, 1.04, 1.06)
    assert MarginRule(0.03, floor_us=0.1).judge(slower, 1.0)[0] is VerdictKind.PASS
    assert MarginRule(0.03, floor_us=0.0).judge(slower, 1.0)[0] is VerdictKind.REGRESSION
    assert MarginRule(0.03, floor_us=0.1).judge(slower, 30.0)[0] is VerdictKind.REGRESSION


def test_calls_of_several_launches_get_twice_the_margin() -> None:
    rule = MarginRule(0.02, floor_us=0.15)
    assert [rule.margin_at(30.0, launches) for launches in (0, 1, 2, 5)] == [0.02, 0.02, 0.04, 0.04]
    assert rule.margin_at(3.0, 2) == pytest.approx(0.1)
    slower = Estimate(1.03, 1.025, 1.035)
    assert rule.judge(slower, 30.0)[0] is VerdictKind.REGRESSION
    found, reason, _ = rule.judge(slower, 30.0, 2)
    assert (found, "4.0 % margin" in reason) == (VerdictKind.PASS, True)


def test_identical_kernels_are_rarely_accused_and_planted_slowdowns_are_found() -> None:
    generator = random.Random(11)
    rule = MarginRule()

    def verdict(slowdown: float) -> VerdictKind:
        # Between placements the A/A log ratio scatters with sd 0.5 % at 12 us (measured on an H200); twelve placements.
        new = [[12.0 * slowdown * math.exp(generator.gauss(0, 0.005))] for _ in range(12)]
        old = [[12.0] for _ in range(12)]
        return rule.judge(ratio_estimate(new, old, 0.1), 12.0)[0]

    alike = [verdict(1.0) for _ in range(500)]
    assert alike.count(VerdictKind.REGRESSION) == 0
    assert alike.count(VerdictKind.PASS) >= 495
    assert [verdict(1.05) for _ in range(200)].count(VerdictKind.REGRESSION) >= 198
    assert [verdict(1 / 1.05) for _ in range(200)].count(VerdictKind.IMPROVEMENT) >= 198
    assert [verdict(1.04) for _ in range(200)].count(VerdictKind.REGRESSION) >= 198
    assert VerdictKind.REGRESSION not in {verdict(1.01) for _ in range(200)}


@pytest.mark.parametrize(("margin", "floor"), [(0.0, 0.1), (-0.1, 0.1), (0.03, -1.0), (math.nan, 0.1)])
def test_refuses_limits_that_judge_nothing(margin: float, floor: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        MarginRule(margin, floor)


def test_a_missing_interval_is_named() -> None:
    assert describe_change(Estimate(1.02, 0.0, math.inf)) == "+2.0 % [no interval: one replicate]"
    assert describe_change(Estimate(1.02, 1.01, 1.03)) == "+2.0 % [+1.0 %, +3.0 %]"


def test_on_a_cpu_the_usual_margin_is_that_of_ab() -> None:
    """For calls of any duration, and only where neither a person nor the scatter between runs gives one."""
    rule, looks = MarginRule(device="cpu"), default_looks("cpu")
    assert [rule.margin_at(time_us, 0) for time_us in (2.0, 50.0, 1e5)] == [looks.margin_at(time_us) for time_us in (2.0, 50.0, 1e5)]
    assert rule.widened({}).margin_at(50.0, 0) == 0.10
    assert MarginRule(0.03, device="cpu").margin_at(50.0) == 0.03
    assert MarginRule(device="cuda").margin_at(50.0) == 0.02
