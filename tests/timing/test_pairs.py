"""Pairs of arms followed from replicate to replicate: what is decided, when, and what is then no longer measured."""

from __future__ import annotations

import math
import random

import pytest

from fusebench.errors import UsageError
from fusebench.schema import Sample, VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.timing.pairs import Judge, Pair, buffer_groups, pair_logs

LOOKS = Plan(looks=(12, 18, 28))
PAIRS = (Pair("slower", new="slow", old="base"), Pair("same", new="twin", old="base"))


def replicate(number: int, rng: random.Random, **factors: float) -> list[Sample]:
    """One replicate of two rounds; every arm takes its factor times 20 us, with 0.2 % of scatter between replicates."""
    samples = []
    for arm, factor in factors.items():
        span_ns = round(20_000 * factor * math.exp(rng.gauss(0.0, 0.002)))
        samples += [
            Sample(case="s:c", arm=arm, replicate=number, round=turn, position=0, span_ns=span_ns, busy_ns=span_ns, kernels=1)
            for turn in range(2)
        ]
    return samples


def test_a_pair_is_decided_at_a_look_and_its_arms_are_then_idle_unless_another_pair_needs_them() -> None:
    judge, rng = Judge(PAIRS, LOOKS, trim=0.0), random.Random(1)
    for number in range(11):
        judge.add(replicate(number, rng, slow=1.05, twin=1.0, base=1.0))
        assert judge.idle_arms() == set(), "nothing is decided between looks"
    judge.add(replicate(11, rng, slow=1.05, twin=1.004, base=1.0))
    found = judge.compared()
    assert found["slower"].finding.kind is VerdictKind.REGRESSION
    assert "slow" in judge.idle_arms()
    assert ("base" in judge.idle_arms()) == (found["same"].finding.kind is not VerdictKind.UNDECIDED)
    assert found["slower"].new_us == pytest.approx(21.0, rel=0.01)
    assert found["slower"].old_us == pytest.approx(20.0, rel=0.01)


def test_what_is_decided_stays_as_it_was_however_much_follows() -> None:
    judge, rng = Judge(PAIRS[:1], LOOKS, trim=0.0), random.Random(1)
    for number in range(12):
        judge.add(replicate(number, rng, slow=1.05, base=1.0))
    decided = judge.compared()["slower"]
    assert judge.open == []
    judge.add(replicate(12, rng, slow=0.5, base=1.0))
    assert judge.compared()["slower"] == decided


def test_a_pair_without_an_answer_is_open_until_the_last_look() -> None:
    judge, rng = Judge(PAIRS[:1], LOOKS, trim=0.0), random.Random(2)
    for number in range(28):
        assert judge.open == [PAIRS[0]]
        judge.add(replicate(number, rng, slow=1.004, base=1.0))  # as large as the margin: neither
    assert judge.open == []
    finding = judge.compared()["slower"].finding
    assert (finding.kind, finding.replicates, finding.next_look) == (VerdictKind.UNDECIDED, 28, None)


def test_a_dropped_pair_is_measured_no_further() -> None:
    judge, rng = Judge(PAIRS, LOOKS, trim=0.0), random.Random(3)
    judge.drop(["same"])
    assert judge.idle_arms() == {"twin"}
    judge.add(replicate(0, rng, slow=1.0, base=1.0))
    assert set(judge.compared()) == {"slower"}


def test_before_the_first_look_a_pair_is_undecided_and_not_lost() -> None:
    judge = Judge(PAIRS[:1], LOOKS, trim=0.0)
    judge.add(replicate(0, random.Random(4), slow=1.05, base=1.0))
    finding = judge.compared()["slower"].finding
    assert (finding.kind, finding.replicates, finding.next_look) == (VerdictKind.UNDECIDED, 0, 12)


def test_two_pairs_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="do not differ in name"):
        Judge((PAIRS[0], PAIRS[0]), LOOKS, trim=0.0)


def test_the_log_ratios_of_samples_are_those_that_the_judge_saw() -> None:
    judge, rng = Judge(PAIRS[:1], LOOKS, trim=0.0), random.Random(5)
    samples = []
    for number in range(3):
        taken = replicate(number, rng, slow=1.02, base=1.0)
        judge.add(taken)
        samples += taken
    samples += replicate(3, rng, base=1.0)  # a replicate without one of the arms says nothing
    assert pair_logs(reversed(samples), PAIRS[0], 0.0) == pytest.approx(judge.compared()["slower"].logs)


def test_arms_that_pairs_join_directly_or_through_others_are_one_household() -> None:
    pairs = [Pair("p", new="a", old="b"), Pair("q", new="d", old="e"), Pair("r", new="c", old="e"), Pair("s", new="e", old="d")]
    assert buffer_groups("abcdef", pairs) == {"a": "b", "b": "b", "c": "e", "d": "e", "e": "e", "f": "f"}
    assert buffer_groups("ab", []) == {"a": "a", "b": "b"}
