from __future__ import annotations

import math
import random

import pytest
from scipy import stats as reference

from fusebench.schema import Estimate, Sample
from fusebench.stats.paired import InvalidSamplesError, half_width, quotient, ratio_estimate, spans_by_replicate, time_estimate


def test_the_interval_is_students_on_the_logarithm() -> None:
    times = [14.1, 13.8, 14.4, 14.0, 13.9]
    found = time_estimate([[time] * 3 for time in times], 0.1)
    logs = [math.log(time) for time in times]
    low, high = reference.t.interval(0.95, len(logs) - 1, loc=sum(logs) / len(logs), scale=reference.sem(logs))
    assert (found.value, found.low, found.high) == pytest.approx((reference.gmean(times), math.exp(low), math.exp(high)))


def test_what_a_replicate_does_to_both_arms_cancels() -> None:
    drift = [1.0, 1.3, 0.8, 1.1]
    above = [[28.0 * factor] * 4 for factor in drift]
    below = [[14.0 * factor] * 4 for factor in drift]
    found = ratio_estimate(above, below, 0.1)
    assert (found.low, found.value, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert time_estimate(above, 0.1).high > 1.3 * time_estimate(above, 0.1).value, "the drift was there to cancel"


def test_one_replicate_claims_no_interval() -> None:
    assert time_estimate([[14.0, 14.0]], 0.1) == Estimate(pytest.approx(14.0), 0.0, math.inf)
    assert ratio_estimate([[28.0]], [[14.0]], 0.1) == Estimate(pytest.approx(2.0), 0.0, math.inf)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = random.Random(3)
    covered = 0
    for _ in range(600):
        above = [[math.exp(generator.gauss(0.0, 0.01))] for _ in range(6)]
        below = [[math.exp(generator.gauss(0.0, 0.01))] for _ in range(6)]
        found = ratio_estimate(above, below, 0.1)
        covered += found.low <= 1.0 <= found.high
    assert 0.92 <= covered / 600 <= 0.98


def test_of_several_processes_each_is_one_number_however_many_replicates_it_has() -> None:
    """Replicates scatter by 0.1 % and processes by 1 %: the interval is that of the three processes' means."""
    logs = [[0.010, 0.011, 0.009], [0.0], [-0.010, -0.011, -0.009, -0.010]]
    replicates = [[14.0 * math.exp(value)] * 2 for process in logs for value in process]
    processes = [number for number, process in enumerate(logs) for _ in process]
    found = time_estimate(replicates, 0.1, processes=processes)
    means = [math.log(14.0) + value for value in (0.010, 0.0, -0.010)]
    low, high = reference.t.interval(0.95, 2, loc=math.log(14.0), scale=reference.sem(means))
    assert (found.value, found.low, found.high) == pytest.approx((14.0, math.exp(low), math.exp(high)))
    ratio = ratio_estimate(replicates, [[7.0]] * len(replicates), 0.1, processes=processes)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, found.low / 7.0, found.high / 7.0))
    alone = time_estimate(replicates, 0.1)
    assert half_width(alone) < 0.5 * half_width(found), "what the replicates would have claimed"


def test_of_one_process_the_replicate_is_the_unit() -> None:
    replicates = [[14.1], [13.8], [14.4]]
    assert time_estimate(replicates, 0.1, processes=[3, 3, 3]) == time_estimate(replicates, 0.1)
    assert ratio_estimate(replicates, [[7.0]] * 3, 0.1, processes=[3, 3, 3]) == ratio_estimate(replicates, [[7.0]] * 3, 0.1)


@pytest.mark.parametrize("processes", [[0], [0, 1, 1]])
def test_every_replicate_needs_its_process(processes: list[int]) -> None:
    with pytest.raises(InvalidSamplesError, match=f"found {len(processes)} processes for 2 replicates"):
        time_estimate([[1.0], [1.0]], 0.1, processes=processes)


def test_replicates_of_one_number_in_two_processes_are_two() -> None:
    def sample(process: int, replicate: int, span_ns: int) -> Sample:
        return Sample(case="s:c", arm="a", process=process, replicate=replicate, round=0, position=0, span_ns=span_ns, busy_ns=1, kernels=1)

    spans = spans_by_replicate([sample(1, 0, 30), sample(0, 1, 20), sample(0, 0, 10), sample(1, 0, 31)])
    assert list(spans["a"].items()) == [((0, 0), [10.0]), ((0, 1), [20.0]), ((1, 0), [30.0, 31.0])]


def test_arms_without_common_replicates_have_no_ratio() -> None:
    with pytest.raises(InvalidSamplesError, match="2 above and 1 below"):
        ratio_estimate([[1.0], [1.0]], [[1.0]], 0.1)
    with pytest.raises(InvalidSamplesError, match="nothing was measured"):
        time_estimate([], 0.1)


def test_distances_of_independent_estimates_add_in_quadrature() -> None:
    above = Estimate(2.0, 2.0 * math.exp(-0.03), 2.0 * math.exp(0.03))
    below = Estimate(1.0, math.exp(-0.04), math.exp(0.04))
    found = quotient(above, below)
    assert (found.value, math.log(found.high / 2.0), math.log(found.low / 2.0)) == pytest.approx((2.0, 0.05, -0.05))


def test_an_unbounded_interval_stays_unbounded_in_a_quotient() -> None:
    found = quotient(Estimate(2.0, 0.0, math.inf), Estimate(1.0, 0.9, 1.1))
    assert (found.value, found.low, found.high) == (2.0, 0.0, math.inf)
    with pytest.raises(ValueError, match="positive finite"):
        quotient(Estimate(math.nan, 0.0, 1.0), Estimate(1.0, 0.9, 1.1))
