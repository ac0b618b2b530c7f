"""The comparison with torch.compile names the cases that it wins, and says so plainly where it wins none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fusebench.report.run.savings import SHOWN_CASES, compiled_lines
from fusebench.schema import Role
from fusebench.stats.weighted import best_terms, saved

COMPILED = "qknorm_rope/compiled@1"
FUSED = ("qknorm_rope/fused_triton@1", "qknorm_rope/fused_triton@2", "qknorm_rope/fused_cuda@1")


def test_a_run_whose_fused_kernels_are_fastest_says_so(synthetic: Any) -> None:
    assert compiled_lines(synthetic.make_run()) == ["torch.compile: the best fused kernel is at least as fast on each of 5 cases"]


def test_a_case_that_torch_compile_wins_is_named_with_both_times(synthetic: Any) -> None:
    slow = {("flux_1024", kernel): 2.0 for kernel in FUSED}
    (line,) = compiled_lines(synthetic.make_run(slow=slow))
    assert line.startswith("torch.compile is faster than the best fused kernel on 1 of 5 cases: qknorm_rope:flux_1024 (fused_triton@2")
    assert "56.16 us, compiled 41.60 us" in line


def test_a_difference_within_the_intervals_is_none(synthetic: Any) -> None:
    """1.6 / 1.08 of the copy's time, so 1.4815 times slower is a tie; 0.2 % more is within intervals of 0.4 %."""
    slow = {("flux_1024", kernel): 1.6 / 1.08 * 1.002 for kernel in FUSED}
    assert "at least as fast" in compiled_lines(synthetic.make_run(slow=slow))[0]


@pytest.mark.parametrize("missing", [("qknorm_rope/compiled@1",), FUSED], ids=["compiled", "fused"])
def test_without_both_nothing_is_said(synthetic: Any, missing: tuple[str, ...]) -> None:
    kernels = [kernel for kernel in synthetic.KERNELS if kernel not in missing]
    assert compiled_lines(synthetic.make_run(kernels=kernels)) == []


def test_a_long_list_is_cut_with_a_count(synthetic: Any) -> None:
    cases = [f"case_{number}" for number in range(SHOWN_CASES + 3)]
    slow = {(case, kernel): 2.0 for case in cases for kernel in FUSED}
    (line,) = compiled_lines(synthetic.make_run(cases=cases, slow=slow))
    assert line.endswith("and 3 more")


def test_the_best_phrasing_of_each_case_counts(synthetic: Any) -> None:
    """A second compiled kernel, twice as fast on one case and twice as slow on the others."""
    run = synthetic.make_run()
    times = {"qknorm_rope:flux_1024": 0.5}
    other = [_scaled(row, times.get(row.case_key, 2.0)) for row in run.results if row.kernel == COMPILED]
    both = msgspec.structs.replace(run, results=(*run.results, *other))
    (line,) = compiled_lines(both)
    assert "on 1 of 5 cases: qknorm_rope:flux_1024" in line
    assert "compiled_whole 20.80 us" in line
    faster = next(one.measurement.time_us.value for one in other if one.case == "flux_1024")
    weight = next(one.case.weight for one in run.cases if one.case.name == "flux_1024")
    assert _compiled_us(both) - _compiled_us(run) == pytest.approx(weight * faster, abs=0.1)


def _scaled(row: Any, by: float) -> Any:
    time_us = row.measurement.time_us
    scaled = msgspec.structs.replace(time_us, value=by * time_us.value, low=by * time_us.low, high=by * time_us.high)
    return msgspec.structs.replace(
        row, kernel="qknorm_rope/compiled_whole@1", measurement=msgspec.structs.replace(row.measurement, time_us=scaled)
    )


def _compiled_us(run: Any) -> float:
    return saved(best_terms(Role.COMPILED, "qknorm_rope", run.cases, run.results))
