"""Student's t from a finite sum, against scipy's."""

from __future__ import annotations

import math

import pytest
from scipy.special import stdtr, stdtrit

from fusebench.stats.student import quantile, upper_tail


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 11, 12, 63, 500])
def test_it_is_students_distribution(degrees: int) -> None:
    for t in (-40.0, -3.0, 0.0, 0.3, 2.0, 8.0):
        assert upper_tail(t, degrees) == pytest.approx(stdtr(degrees, -t), abs=1e-13)
    for p in (1e-6, 0.01, 0.4, 0.95, 0.975, 0.99999):
        assert quantile(p, degrees) == pytest.approx(stdtrit(degrees, p), rel=1e-8)


def test_its_ends_and_its_middle() -> None:
    assert (upper_tail(math.inf, 5), upper_tail(-math.inf, 5), upper_tail(0.0, 5)) == (0.0, 1.0, 0.5)
    assert quantile(0.5, 7) == pytest.approx(0.0, abs=1e-12)


def test_refuses_what_is_no_distribution() -> None:
    with pytest.raises(ValueError, match="degrees=0"):
        upper_tail(1.0, 0)
    with pytest.raises(ValueError, match="p=1"):
        quantile(1.0, 3)
