"""Balance of the orders in which arms are timed."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from fusebench.timing.replicate import balanced_rounds, williams_design

ARMS = range(1, 10)


@pytest.mark.parametrize("arms", ARMS)
def test_every_row_holds_every_arm_once(arms: int) -> None:
    assert all(sorted(row) == list(range(arms)) for row in williams_design(arms))


@pytest.mark.parametrize("arms", ARMS)
def test_every_arm_is_at_every_place_equally_often(arms: int) -> None:
    rows = williams_design(arms)
    counts = Counter((place, arm) for row in rows for place, arm in enumerate(row))
    assert set(counts.values()) == {len(rows) // arms}
    assert len(counts) == arms * arms


@pytest.mark.parametrize("arms", ARMS[1:])
def test_every_arm_follows_every_other_equally_often(arms: int) -> None:
    counts = Counter(pair for row in williams_design(arms) for pair in itertools.pairwise(row))
    assert set(counts) == set(itertools.permutations(range(arms), 2))
    assert set(counts.values()) == {1 if arms % 2 == 0 else 2}


def test_a_round_needs_an_arm() -> None:
    with pytest.raises(ValueError, match="got 0"):
        williams_design(0)


@pytest.mark.parametrize(("rounds", "whole"), [(4, 1), (7, 1), (8, 2), (3, 0)])
def test_rounds_are_whole_designs_and_a_cut_one(rounds: int, whole: int) -> None:
    orders = balanced_rounds("abcd", rounds, random.Random(5))
    assert len(orders) == rounds
    assert all(sorted(order) == list("abcd") for order in orders)
    for start in range(0, 4 * whole, 4):
        pairs = Counter(pair for order in orders[start : start + 4] for pair in itertools.pairwise(order))
        assert set(pairs.values()) == {1}
        assert len(pairs) == 12
    cut = Counter(pair for order in orders[4 * whole :] for pair in itertools.pairwise(order))
    assert max(cut.values(), default=0) <= 1


def test_the_seed_decides_the_orders() -> None:
    first, again, other = (balanced_rounds("abcdef", 12, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({tuple(order) for order in first}) == 12, "the second design must have labels of its own"
