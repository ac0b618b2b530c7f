from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as reference

from fusebench.schema import Estimate
from fusebench.stats.fdr import DEFAULT_RATE, Dependence, first_level, select
from fusebench.stats.paired import quotient, ratio_estimate
from fusebench.stats.sequential import Plan
from fusebench.stats.student import p_slower_of
from fusebench.verdict.conclusion import PROCESSES
from helpers.operating_characteristics import false_alarm_bound


@pytest.mark.parametrize(("dependence", "method"), [(Dependence.POSITIVE, "bh"), (Dependence.ANY, "by")])
def test_adjusted_p_values_are_scipys(dependence: Dependence, method: str) -> None:
    p_values = np.random.default_rng(4).beta(0.3, 1.0, 50)
    p_values[7] = p_values[8]
    assert select(p_values.tolist(), dependence=dependence).adjusted == pytest.approx(
        reference.false_discovery_control(p_values, method=method)
    )


@pytest.mark.parametrize("dependence", list(Dependence))
def test_the_share_of_false_findings_stays_at_the_rate(dependence: Dependence) -> None:
    """100 comparisons, 10 of them slower, all touched by one afternoon's luck."""
    generator = np.random.default_rng(5)
    shares, found = [], 0
    for _ in range(1000):
        scores = 0.6 * generator.normal() + 0.8 * generator.normal(size=100) + np.where(np.arange(100) < 10, 4.0, 0.0)
        stands = select(reference.norm.sf(scores).tolist(), 0.05, dependence).stands
        shares.append(sum(stands[10:]) / max(1, sum(stands)))
        found += sum(stands[:10])
    # The sample mean of 1000 shares, each between 0 and 1, with its own standard error.
    assert np.mean(shares) <= 0.05 + 3 * np.std(shares) / math.sqrt(1000)
    assert found > 0.4 * 10 * 1000, "it controls by judging, not by finding nothing"
    uncorrected = np.mean([(generator.random(90) <= 0.05).sum() / 14.5 for _ in range(1000)])
    assert uncorrected > 0.2, "the same level without correction: a third of what is called is false"


def test_intervals_of_what_was_selected_cover_as_often_as_they_say() -> None:
    """Selection exaggerates: of 200 comparisons whose true change is small, those called look large, and unadjusted intervals miss."""
    generator = np.random.default_rng(6)
    adjusted, plain = [], []
    for _ in range(200):
        scores = 1.0 + generator.normal(size=200)
        chosen = select(reference.norm.sf(scores).tolist(), 0.1)
        picked = scores[np.array(chosen.stands)]
        if len(picked):
            adjusted.append(np.mean(picked - reference.norm.isf(chosen.tail) > 1.0))
            plain.append(np.mean(picked - reference.norm.isf(0.1) > 1.0))
        else:
            adjusted.append(0.0)
    assert np.mean(adjusted) <= 0.1 + 3 * np.std(adjusted) / math.sqrt(200)
    assert np.mean(plain) > 0.3


def test_a_confirmed_finding_stands_alone_in_a_large_suite() -> None:
    least = false_alarm_bound(Plan(), PROCESSES)
    assert select([least] + [1.0] * 319).stands[0]
    assert not select([least] + [1.0] * 320).stands[0]
    level = first_level(2000, PROCESSES)
    assert level < Plan().alarm_level
    assert select([level * 0.5**PROCESSES] + [1.0] * 1999).stands[0]
    assert first_level(10, PROCESSES) == Plan().alarm_level


def test_nothing_found_keeps_the_level_of_its_intervals() -> None:
    none = select([0.5, 1.0])
    assert (none.count, none.tail) == (0, DEFAULT_RATE)
    assert select([]).adjusted == ()
    assert select([0.001, 1.0]).tail == DEFAULT_RATE / 2


def test_p_values_of_intervals_are_students() -> None:
    logs = np.random.default_rng(7).normal(math.log(1.05), 0.02, 12)
    change = ratio_estimate([[math.exp(value)] for value in logs], [[1.0]] * 12, 0.0, 0.9)
    expected = reference.ttest_1samp(logs, math.log(1.03), alternative="greater").pvalue
    assert p_slower_of(change, 0.03, 11) == pytest.approx(expected)
    assert p_slower_of(Estimate(1.5, 0.0, math.inf), 0.03, 11) == 1.0
    assert p_slower_of(change, 0.03, 0) == 1.0
    assert (p_slower_of(Estimate(1.0, 1.0, 1.0), 0.03, 11), p_slower_of(Estimate(1.1, 1.1, 1.1), 0.03, 11)) == (1.0, 0.0)


def test_p_values_of_quotients_are_cautious() -> None:
    generator = np.random.default_rng(8)

    def side(center: float) -> Estimate:
        return ratio_estimate([[value] for value in np.exp(generator.normal(center, 0.01, 12))], [[1.0]] * 12, 0.0)

    p_values = [p_slower_of(quotient(side(math.log(1.03)), side(0.0)), 0.03, 11) for _ in range(2000)]
    for level in (0.002, 0.01, 0.05, 0.2):
        assert sum(p <= level for p in p_values) <= reference.binom.ppf(0.999, 2000, level)


def test_refuses_what_is_no_probability() -> None:
    with pytest.raises(ValueError, match=r"p-value 1 of 2 is 1\.5"):
        select([0.1, 1.5])
    with pytest.raises(ValueError, match="rate=0"):
        select([0.1], rate=0.0)
    with pytest.raises(ValueError, match="at least one comparison"):
        first_level(0, 5)
