"""The search for the commit that made a kernel slower: its turns, its error rate, and its answers over simulated histories."""

from __future__ import annotations

import math

import pytest

from fusebench.schema import Confirmation, ConfirmationOutcome, Estimate, Finding, VerdictKind
from fusebench.stats.bisection import ERROR_RATE, Search, Side, comparisons_of, plan_of_step, side_of, size_of
from fusebench.stats.sequential import Plan
from helpers import simulate
from helpers.bisection_characteristics import COMMITS, search, simulated

SEARCHES = 40
SIZE = 0.03


def finding(kind: VerdictKind, low: float = 0.99, high: float = 1.02, next_look: int | None = None) -> Finding:
    change = Estimate(math.sqrt(low * high), low, high, 0.99)
    return Finding(kind=kind, change=change, p_slower=0.5, p_faster=0.5, margin=0.015, replicates=12, next_look=next_look, reason="")


def confirmed(outcome: ConfirmationOutcome, *estimates: float) -> Confirmation:
    return Confirmation(outcome=outcome, estimates=estimates, agreeing=0)


@pytest.mark.parametrize("last", [1, 2, 3, 7, 64, 65])
def test_every_first_slow_commit_is_found_in_as_many_steps_as_halvings(last: int) -> None:
    for first in range(1, last + 1):
        found, asked = search(last, lambda place, first=first: Side.SLOW if place >= first else Side.FAST)  # type: ignore[misc]
        assert (found.low, found.high) == (first - 1, first)
        assert len(asked) <= math.ceil(math.log2(last)) == max(0, comparisons_of(last) - 2)


def test_untestable_commits_are_passed_by_and_widen_the_answer() -> None:
    broken = {30, 31, 32, 33}
    answer = lambda first: lambda place: Side.UNTESTABLE if place in broken else Side.SLOW if place >= first else Side.FAST  # noqa: E731
    found, asked = search(64, answer(10))
    assert (found.low, found.high) == (9, 10)
    found, asked = search(64, answer(32))
    assert (found.low, found.high) == (29, 34)
    assert broken <= set(asked)
    found, asked = search(3, lambda place: Side.UNTESTABLE)
    assert (found.low, found.high, sorted(asked)) == (0, 3, [1, 2])


def test_a_history_that_goes_up_and_down_ends_at_a_slowdown() -> None:
    slow = {5, 6, 7, 20, 21, 40, 41, 42, 63, 64}
    found, _ = search(64, lambda place: Side.SLOW if place in slow else Side.FAST)
    assert found.high in slow
    assert found.low not in slow
    assert found.high - found.low == 1


def test_positions_outside_the_search_are_refused() -> None:
    with pytest.raises(ValueError, match="does not lie between 0 and 4"):
        Search(4).note(4, Side.SLOW)
    with pytest.raises(ValueError, match="at least one commit"):
        Search(0)


def test_the_error_rate_is_shared_by_all_comparisons_of_the_search() -> None:
    step = plan_of_step(Plan(), COMMITS, size=1 + SIZE)
    assert comparisons_of(COMMITS) == 8
    assert step.pass_level == ERROR_RATE / 8
    assert step.alarm_level == Plan().alarm_level
    assert step.margin == pytest.approx(math.sqrt(1 + SIZE) - 1)
    assert (plan_of_step(Plan(), COMMITS).margin, plan_of_step(Plan(), COMMITS).floor_us) == (Plan().margin, Plan().floor_us)
    with pytest.raises(ValueError, match="above 1"):
        plan_of_step(Plan(), 4, size=0.99)


def test_sides() -> None:
    assert side_of(finding(VerdictKind.PASS), None, 0.004) is Side.FAST
    assert side_of(finding(VerdictKind.IMPROVEMENT), None, 0.004) is Side.FAST
    regression = finding(VerdictKind.REGRESSION, 1.02, 1.04)
    assert side_of(regression, confirmed(ConfirmationOutcome.CONFIRMED, *[1.03] * 5), 0.004) is Side.SLOW
    assert side_of(regression, confirmed(ConfirmationOutcome.REFUTED, *[1.0] * 5), 0.004) is Side.FAST
    assert side_of(regression, confirmed(ConfirmationOutcome.UNCLEAR, 1.03, 1.01, 1.02, 1.02, 1.02), 0.004) is Side.SLOW
    assert side_of(regression, confirmed(ConfirmationOutcome.UNCLEAR, 1.03, 1.003, 1.02, 1.02, 1.02), 0.004) is Side.UNTESTABLE
    assert side_of(regression, None, 0.004) is Side.UNTESTABLE
    # Half of the slowdown is there: slow, and not undecided.
    assert side_of(finding(VerdictKind.UNDECIDED, 1.008, 1.02), None, 0.004) is Side.SLOW
    assert side_of(finding(VerdictKind.UNDECIDED, 1.003, 1.02), None, 0.004) is Side.UNTESTABLE
    assert side_of(finding(VerdictKind.UNDECIDED, 1.008, 1.02, next_look=18), None, 0.004) is Side.UNTESTABLE


def test_the_size_is_the_middle_of_all_processes() -> None:
    found = size_of(finding(VerdictKind.REGRESSION, 1.03, 1.03), confirmed(ConfirmationOutcome.CONFIRMED, 1.01, 1.02, 1.03, 1.04, 1.5))
    assert found == pytest.approx(1.03)


@pytest.mark.parametrize("noise", [simulate.DURATIONS[2], simulate.DURATIONS[3]], ids=lambda noise: noise.name)
def test_a_slowdown_of_3_percent_among_64_commits_is_found_by_8_measured_commits(noise: simulate.Noise) -> None:
    right = 0
    for number in range(SEARCHES):
        first = 1 + (number * 37) % COMMITS
        outcome = simulated([SIZE if place >= first else 0.0 for place in range(COMMITS + 1)], noise, number)
        assert outcome.measured <= 8
        assert outcome.culprit in (first, None), "a wrong commit is named"
        right += outcome.culprit == first
    assert right >= 0.95 * SEARCHES
