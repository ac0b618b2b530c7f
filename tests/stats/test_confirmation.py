from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fusebench.schema import ConfirmationOutcome, Finding, VerdictKind
from fusebench.stats.confirmation import combined_p, confirm
from fusebench.stats.sequential import Plan, judge
from fusebench.verdict.conclusion import PROCESSES, conclude, placements_for
from helpers.operating_characteristics import false_alarm_bound

SLOWER = [0.01] * PROCESSES
EQUAL = [0.0] * PROCESSES


def finding(change: float) -> Finding:
    found = judge(np.random.default_rng(3).normal(math.log1p(change), 0.002, 64), 12.0)
    assert found.replicates == 12
    return found


def processes(centers: list[float]) -> list[list[float]]:
    return [[center - 0.001, center, center + 0.001] for center in centers]


@pytest.mark.parametrize(
    ("change", "fresh", "outcome", "kind"),
    [
        (0.02, SLOWER, ConfirmationOutcome.CONFIRMED, VerdictKind.REGRESSION),
        (0.02, [*SLOWER[1:], 0.003], ConfirmationOutcome.UNCLEAR, VerdictKind.UNDECIDED),
        (0.02, EQUAL, ConfirmationOutcome.REFUTED, VerdictKind.PASS),
        (0.02, [*EQUAL[1:], -0.02], ConfirmationOutcome.UNCLEAR, VerdictKind.UNDECIDED),
        (0.02, EQUAL[:4], ConfirmationOutcome.UNCLEAR, VerdictKind.UNDECIDED),  # 2**-4 is too much to pass on
        (-0.02, [-0.01] * 5, ConfirmationOutcome.CONFIRMED, VerdictKind.IMPROVEMENT),
        (-0.02, SLOWER, ConfirmationOutcome.UNCLEAR, VerdictKind.UNDECIDED),
    ],
)
def test_only_processes_that_all_agree_confirm(change: float, fresh: list[float], outcome: ConfirmationOutcome, kind: VerdictKind) -> None:
    first = finding(change)
    confirmation = confirm(first, processes(fresh))
    assert confirmation.outcome is outcome
    verdict = conclude(first, confirmation)
    assert verdict.kind is kind
    assert f"{confirmation.agreeing} of {len(fresh)} fresh processes" in verdict.reason


def test_a_change_is_not_called_before_it_is_confirmed() -> None:
    verdict = conclude(finding(0.02), None)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert "not yet confirmed" in verdict.reason
    assert conclude(finding(0.0), None).kind is VerdictKind.PASS


def test_both_stages_multiply() -> None:
    first = finding(0.02)
    confirmed, unclear = confirm(first, processes(SLOWER)), confirm(first, processes([*SLOWER[1:], 0.0]))
    assert combined_p(first, confirmed) == first.p_slower * 2**-PROCESSES <= false_alarm_bound(Plan(), PROCESSES)
    assert combined_p(first, unclear) == combined_p(first, None) == 1.0
    assert combined_p(first, confirmed, VerdictKind.IMPROVEMENT) == first.p_faster == 1.0
    assert combined_p(finding(0.0), None) == 1.0


def test_the_combined_p_value_is_one() -> None:
    """At a change equal to the margin, P(p <= u) is at most u for every u, the confirmation's own steps included."""
    generator = np.random.default_rng(9)
    plan = Plan(looks=(8,), alarm_level=0.2, pass_level=0.05)
    p_values = []
    for _ in range(4000):
        first = judge(generator.normal(math.log1p(plan.margin), 0.005, 8), 12.0, plan)
        again = None
        if first.kind is VerdictKind.REGRESSION:
            again = confirm(first, generator.normal(math.log1p(plan.margin), 0.005, (2, 3)).tolist())
        p_values.append(combined_p(first, again))
    for level in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        assert sum(p <= level for p in p_values) <= binom.ppf(0.999, 4000, level)
    assert sum(p <= 0.05 for p in p_values) >= binom.ppf(0.001, 4000, 0.03), "a valid p-value, and not an empty one"


def test_processes_with_modes_of_their_own_rarely_agree_by_chance() -> None:
    """Each process shifts all its replicates by 2 %, up or down, and the kernels are equal: a first finding says nothing, five do."""
    generator = np.random.default_rng(10)
    first = finding(0.02)
    confirmed = sum(
        confirm(first, (generator.choice([-0.02, 0.02], (5, 1)) + generator.normal(0, 0.002, (5, 6))).tolist()).outcome
        is ConfirmationOutcome.CONFIRMED
        for _ in range(2000)
    )
    assert binom.ppf(0.001, 2000, 0.5**5) <= confirmed <= binom.ppf(0.999, 2000, 0.5**5)
    assert false_alarm_bound(Plan(), PROCESSES, shared_shift=True) == 0.5**6


def test_a_finding_that_took_many_replicates_is_repeated_with_as_many() -> None:
    late = judge(np.random.default_rng(4).normal(math.log1p(0.007), 0.005, 64), 12.0)
    assert late.kind is VerdictKind.REGRESSION
    assert placements_for(late) == late.replicates > 12
    few = Plan(looks=(8,), alarm_level=0.2)
    assert placements_for(judge([0.02] * 8, 12.0, few)) == 12


def test_refuses_what_cannot_be_confirmed() -> None:
    with pytest.raises(ValueError, match="claims no change"):
        confirm(finding(0.0), processes(EQUAL))
    with pytest.raises(ValueError, match="no fresh process"):
        confirm(finding(0.02), [])
    with pytest.raises(ValueError, match="at least one value"):
        confirm(finding(0.02), [[0.1], []])
