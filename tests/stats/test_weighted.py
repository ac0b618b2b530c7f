from __future__ import annotations

from types import ModuleType

import pytest

from fusebench.schema import Status
from fusebench.stats.weighted import BEST_FUSED, best_fused, suite_summaries, weighted_speedup


def test_published_cases_give_their_published_kind_of_figure() -> None:
    split = [0.059520, 0.081152, 0.079680, 0.074112, 0.059488]
    fused = [0.043072, 0.055008, 0.054560, 0.051008, 0.043232]
    terms = [(1.0, above, below) for above, below in zip(split, fused, strict=True)]
    assert weighted_speedup(terms) == pytest.approx(1.434, abs=0.005)


def test_weights_count_launches() -> None:
    assert weighted_speedup([(1.0, 10.0, 5.0), (9.0, 10.0, 10.0)]) == pytest.approx(100 / 95)
    with pytest.raises(ValueError, match="at least one case"):
        weighted_speedup([])


def test_best_fused_takes_the_fastest_of_each_case(synthetic: ModuleType) -> None:
    run = synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 1.5})
    (summary,) = suite_summaries(run.cases, run.results)
    weights = [summary.case.weight for summary in run.cases]
    copies = [summary.copy_us.value for summary in run.cases]
    fastest = [1.11, 1.08, 1.08, 1.08, 1.08]
    above = sum(weight * copy * 2.05 for weight, copy in zip(weights, copies, strict=True))
    below = sum(weight * copy * best for weight, copy, best in zip(weights, copies, fastest, strict=True))
    assert summary.weighted_speedup[BEST_FUSED] == pytest.approx(above / below)
    assert summary.weighted_speedup[BEST_FUSED] > summary.weighted_speedup["fused_triton@2"]


def test_a_declined_case_is_counted_as_not_covered(synthetic: ModuleType) -> None:
    run = synthetic.make_run(status={("flux_1024", synthetic.FUSED): (Status.UNSUPPORTED, "declines")})
    (summary,) = suite_summaries(run.cases, run.results)
    assert (summary.cases, summary.covered_cases["fused_triton@2"], summary.covered_cases[BEST_FUSED]) == (5, 4, 5)


def test_without_a_baseline_there_is_no_figure(synthetic: ModuleType) -> None:
    lost = {(case, synthetic.BASELINE): (Status.CRASHED, "boom") for case in synthetic.CASES}
    run = synthetic.make_run(status=lost)
    (summary,) = suite_summaries(run.cases, run.results)
    assert summary.weighted_speedup == {}


def test_the_baseline_itself_and_unmeasured_kernels_are_no_fused_best(synthetic: ModuleType) -> None:
    run = synthetic.make_run(kernels=[synthetic.BASELINE])
    assert best_fused(run.results) is None
    assert suite_summaries(run.cases, run.results)[0].weighted_speedup == {}
