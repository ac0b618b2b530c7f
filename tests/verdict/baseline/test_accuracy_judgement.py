"""A loss of accuracy against a baseline: what counts as one, and what the draws alone explain."""

from __future__ import annotations

import math
from types import ModuleType

import msgspec
import pytest

from fusebench.schema import OutputError, Run, Verdict, VerdictKind
from fusebench.verdict.accuracy_change import accuracy_growth, accuracy_loss
from fusebench.verdict.baseline.judgement import judge_each
from fusebench.verdict.margins.rule import MarginRule

RULE = MarginRule()


def judged(new: Run, old: Run) -> dict[tuple[str, str], Verdict]:
    return {(one.case, one.kernel): one.verdict for one in judge_each(new, old, RULE)}


def test_a_lost_decimal_is_a_regression_though_the_contract_still_holds(synthetic: ModuleType) -> None:
    place = ("flux_1024", synthetic.FUSED)
    found = judged(synthetic.make_run(errors={place: 1.2}), synthetic.make_run())
    assert found[place].kind is VerdictKind.REGRESSION
    assert found[place].reason.startswith("accuracy: rms error")
    assert found["flux_1024", synthetic.BASELINE].kind is VerdictKind.PASS
    within = judged(synthetic.make_run(errors={place: 1.05}), synthetic.make_run())
    assert within[place].kind is VerdictKind.PASS


def test_few_elements_widen_the_accuracy_margin(synthetic: ModuleType) -> None:
    def small(run: Run) -> Run:
        return synthetic.change_results(run, accuracy=msgspec.structs.replace(run.results[0].accuracy, elements=3072))

    place = ("flux_1024", synthetic.FUSED)
    new = small(synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED], errors={place: 1.2}))
    old = small(synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED]))
    assert judge_each(new, old, RULE)[0].verdict.kind is VerdictKind.PASS


def test_plain_errors_of_few_rows_scatter_more_than_those_of_each_output(synthetic: ModuleType) -> None:
    old = msgspec.structs.replace(synthetic.make_run().results[0].accuracy, elements=400_000, channel_rms_error=0.0, outputs=())
    new = msgspec.structs.replace(old, rms_error=old.rms_error * 1.2)
    assert accuracy_loss(new, old) == ""

    def grown(factor: float, elements: int) -> str:
        sides = msgspec.structs.replace(old, rms_error=old.rms_error * factor), old
        return accuracy_loss(*(msgspec.structs.replace(one, elements=elements) for one in sides))

    assert grown(1.55, 608_256) == "", "as an unchanged kernel grew between two nightlies"
    assert "1.70 x the baseline's; 1.60 x is allowed" in grown(1.7, 24_576), "fewer elements do not scatter by as much again"
    assert "1.40 x the baseline's; 1.30 x is allowed" in grown(1.4, 4_000_000)
    outputs = [(OutputError(name="y", unit="value", rms=rms, split_rms=0.002, floor=0.0),) for rms in (0.0012, 0.001)]
    sides = [msgspec.structs.replace(one, outputs=found) for one, found in zip((new, old), outputs, strict=True)]
    assert "output 'y' relative to the split chain's is 1.20 x the baseline's; 1.12 x is allowed" in accuracy_loss(*sides)


def test_errors_are_compared_relative_to_the_split_chain_of_the_same_draws(synthetic: ModuleType) -> None:
    accuracy = synthetic.make_run().results[0].accuracy
    doubled = msgspec.structs.replace(accuracy, rms_error=accuracy.rms_error * 2, split_rms_error=accuracy.split_rms_error * 2)
    exact = msgspec.structs.replace(accuracy, rms_error=0.0, split_rms_error=0.0)
    assert accuracy_growth(doubled, accuracy) == pytest.approx(1.0)
    assert accuracy_growth(exact, exact) == 1.0
    assert accuracy_growth(accuracy, exact) == math.inf


def test_the_place_of_outlier_channels_is_not_growth_and_growth_within_channels_is(synthetic: ModuleType) -> None:
    accuracy = msgspec.structs.replace(synthetic.make_run().results[0].accuracy, channel_rms_error=1.0e-3, split_channel_rms_error=2.0e-3)
    other_draws = msgspec.structs.replace(accuracy, rms_error=accuracy.rms_error * 1.3)
    worse = msgspec.structs.replace(accuracy, channel_rms_error=1.2e-3)
    assert accuracy_growth(other_draws, accuracy) == pytest.approx(1.0)
    assert accuracy_growth(worse, accuracy) == pytest.approx(1.2)
