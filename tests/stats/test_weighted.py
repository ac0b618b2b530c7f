from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import Run, Status
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


def with_variant(run: Run, case: str) -> Run:
    """`run` with that case made a variant, its summaries made anew."""
    cases = [
        msgspec.structs.replace(summary, case=msgspec.structs.replace(summary.case, variant="tp2"))
        if summary.case.name == case
        else summary
        for summary in run.cases
    ]
    return msgspec.structs.replace(run, cases=cases, suites=suite_summaries(cases, run.results))


def test_a_step_saves_the_weighted_difference_of_the_times(synthetic: ModuleType) -> None:
    run = synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 1.5})
    (summary,) = suite_summaries(run.cases, run.results)
    copies = [26.0, 28.0, 30.0, 32.0, 34.0]
    # flux_1024's fused_triton@2 is slow, so fused_cuda@1 is that case's best; weights are 1 to 5.
    baseline = sum(weight * copy * 2.05 for weight, copy in enumerate(copies, 1))
    best = sum(weight * copy * (1.11 if weight == 1 else 1.08) for weight, copy in enumerate(copies, 1))
    assert summary.baseline_us_per_step[BEST_FUSED] == pytest.approx(baseline)
    assert summary.saved_us_per_step[BEST_FUSED] == pytest.approx(baseline - best)
    assert summary.saved_us_per_step["split_torch@1"] == pytest.approx(sum(w * c * (2.05 - 9.0) for w, c in enumerate(copies, 1)))
    assert summary.covered_weight[BEST_FUSED] == 1


def test_savings_cover_only_what_was_measured_and_say_how_much(synthetic: ModuleType) -> None:
    lost = {("batch2_medium", kernel): (Status.UNSUPPORTED, "declines") for kernel in synthetic.KERNELS if "fused" in kernel}
    run = synthetic.make_run(status=lost)
    (summary,) = suite_summaries(run.cases, run.results)
    whole = suite_summaries(run.cases, synthetic.make_run().results)[0]
    assert (summary.covered_cases[BEST_FUSED], summary.cases) == (4, 5)
    assert summary.covered_weight[BEST_FUSED] == pytest.approx(10 / 15)
    assert summary.saved_us_per_step[BEST_FUSED] == pytest.approx(whole.saved_us_per_step[BEST_FUSED] - 5 * 34 * (2.05 - 1.08))
    assert summary.covered_weight["compiled@1"] == 1


def test_a_variant_is_in_no_sum(synthetic: ModuleType) -> None:
    (summary,) = with_variant(synthetic.make_run(), "batch2_medium").suites
    others = synthetic.make_run(cases=synthetic.CASES[:4])
    assert summary == others.suites[0]


def test_a_suite_of_variants_alone_has_no_figure(synthetic: ModuleType) -> None:
    (summary,) = with_variant(synthetic.make_run(cases=("flux_1024",)), "flux_1024").suites
    assert (summary.cases, summary.weighted_speedup, summary.saved_us_per_step) == (0, {}, {})
