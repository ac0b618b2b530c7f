from __future__ import annotations

import math

import numpy as np
import pytest

from fusebench.schema import Estimate
from fusebench.stats.scatter import (
    DEGREES,
    Difference,
    at_level,
    components,
    excess,
    finding_margin,
    interval,
    passing_margin,
    standard_error,
)
from fusebench.stats.student import quantile


def pairs(count: int, process: float, board: float, seed: int, own: float = 0.002) -> list[Difference]:
    """Pairs of one and of two boards, each of two processes, with Student's tails."""
    generator = np.random.default_rng(seed)
    found = []
    for same in (True, False):
        variance = own**2 + 2 * process**2 + (0.0 if same else 2 * board**2)
        for log in generator.standard_t(DEGREES, count) * math.sqrt(variance):
            found.append(Difference(log_ratio=float(log), own=own**2, processes=2.0, same_board=same))
    return found


def test_known_components_are_recovered() -> None:
    process, board = components(pairs(4000, 0.003, 0.005, 1))
    assert process == pytest.approx(0.003, rel=0.1)
    assert board == pytest.approx(0.005, rel=0.1)


def test_a_wild_pair_in_fifty_moves_no_component_far() -> None:
    usual = pairs(1000, 0.003, 0.005, 2)
    wild = [one if place % 50 else Difference(log_ratio=0.5, own=0.0, processes=2.0, same_board=True) for place, one in enumerate(usual)]
    process, _ = components(wild)
    assert process is not None
    assert process < 0.003 * 1.6


def test_a_level_without_pairs_is_not_known() -> None:
    usual = pairs(50, 0.003, 0.005, 3)
    assert components([one for one in usual if one.same_board])[1] is None
    process, board = components([one for one in usual if not one.same_board])
    assert process is None
    assert board == pytest.approx(math.hypot(0.003, 0.005), rel=0.4)
    with pytest.raises(ValueError, match="at least one pair of runs"):
        components([])


def test_more_processes_leave_less_scatter() -> None:
    """A difference of two runs of eight processes that is as large says that processes scatter more."""
    logs = [0.001 * place for place in range(-20, 21)]
    one, eight = (
        components([Difference(log_ratio=log, own=0.0, processes=each, same_board=True) for log in logs])[0] for each in (2.0, 0.25)
    )
    assert one is not None
    assert eight == pytest.approx(math.sqrt(8) * one, rel=1e-6)


def test_the_standard_error_inverts_a_student_interval() -> None:
    half = quantile(0.975, 11) * 0.004
    assert standard_error(Estimate(10.0, 10.0 * math.exp(-half), 10.0 * math.exp(half)), 12) == pytest.approx(0.004)
    assert math.isinf(standard_error(Estimate(10.0, 0.0, math.inf), 1))
    with pytest.raises(ValueError, match="at least one unit"):
        standard_error(Estimate(1.0, 0.9, 1.1), 0)


def test_an_interval_at_another_level_is_the_one_of_the_same_variance() -> None:
    wide, narrow = interval(0.01, 0.003**2), interval(0.01, 0.003**2, 0.9)
    again = at_level(wide, 0.9)
    assert (again.low, again.high) == pytest.approx((narrow.low, narrow.high))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert math.isinf(interval(0.0, math.inf).high)


def test_margins_keep_what_they_promise() -> None:
    generator = np.random.default_rng(4)
    logs = generator.standard_t(DEGREES, 200_000) * 0.005
    margin = passing_margin(0.005, 0.98, 0.9)
    assert np.mean(np.abs(logs) + quantile(0.95, DEGREES) * 0.005 < margin) == pytest.approx(0.98, abs=0.002)
    margin = finding_margin(0.05, 0.005, 0.9, 0.95)
    assert np.mean(0.05 + logs - quantile(0.975, DEGREES) * 0.005 > margin) == pytest.approx(0.9, abs=0.003)


def test_identical_code_that_scatters_more_widens_intervals() -> None:
    usual = [interval(0.001 * place, 0.004**2) for place in range(-10, 11)]
    assert excess(usual) == 1.0
    noisy = [interval(0.003 * place, 0.004**2) for place in range(-10, 11)]
    factor = excess(noisy)
    assert factor > 2
    assert excess([interval(0.003 * place, (factor * 0.004) ** 2) for place in range(-10, 11)]) == pytest.approx(1.0)
    assert excess(noisy[:19]) == 1.0, "the largest of few is beyond its interval by chance"
