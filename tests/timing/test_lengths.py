"""Lengths known beforehand: pairs that are measured for as long as each of them is asked for, and everything alike."""

from __future__ import annotations

import pytest

from fusebench.errors import UsageError
from fusebench.timing.pairs import FixedLength, Lengths, Pair

SHORT, LONG = Pair("short", new="a", old="b"), Pair("long", new="c", old="b")


def test_arms_are_left_out_once_every_pair_that_names_them_has_its_replicates() -> None:
    lengths = Lengths([SHORT, LONG], {"short": 2, "long": 3})
    assert lengths.replicates == 3
    idle = []
    while not lengths.over:
        idle.append(lengths.idle_arms())
        lengths.add([])
    assert idle == [set(), set(), {"a"}]
    assert lengths.idle_arms() == {"a", "b", "c"}


@pytest.mark.parametrize("lengths", [{}, {"short": 2}, {"short": 2, "long": 0}])
def test_every_pair_needs_a_length(lengths: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="expected 1 or more replicates for each of the pairs"):
        Lengths([SHORT, LONG], lengths)


def test_no_pairs_have_no_length() -> None:
    with pytest.raises(UsageError):
        Lengths([], {})


def test_a_fixed_length_is_every_arms() -> None:
    length = FixedLength(3)
    assert length.replicates == 3
    for _ in range(3):
        assert not length.over
        assert length.idle_arms() == set()
        length.add([])
    assert length.over
