from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import Run, Status
from fusebench.verdict.baseline.judgement import judge_each
from fusebench.verdict.baseline.suite_changes import shrinkage, unexplained_improvements
from fusebench.verdict.margins.rule import MarginRule

WHERE = "qknorm_rope:flux_1024"


def test_an_untouched_suite_has_not_shrunk(synthetic: ModuleType) -> None:
    assert shrinkage(synthetic.make_run(), synthetic.make_run()) == []
    assert shrinkage(synthetic.make_run(), synthetic.make_run(cases=synthetic.CASES[:2])) == [], "growing is not shrinking"


def test_lost_cases_are_weighed(synthetic: ModuleType) -> None:
    (lost,) = shrinkage(synthetic.make_run(cases=synthetic.CASES[:3]), synthetic.make_run())
    assert lost.cases == ("zimage_1024", "batch2_medium")
    assert lost.kernels == ()
    assert lost.lost_weight == pytest.approx((4 + 5) / (1 + 2 + 3 + 4 + 5))
    assert str(lost) == "suite qknorm_rope has shrunk (60.0 % of its weight): 2 cases are gone: zimage_1024, batch2_medium"


def test_a_lost_variant_is_named_and_weighs_nothing(synthetic: ModuleType) -> None:
    baseline = synthetic.make_run()
    last = baseline.cases[-1]
    variant = msgspec.structs.replace(last, case=msgspec.structs.replace(last.case, variant="tp2"))
    baseline = msgspec.structs.replace(baseline, cases=[*baseline.cases[:-1], variant])
    (lost,) = shrinkage(synthetic.make_run(cases=synthetic.CASES[:4]), baseline)
    assert (lost.cases, lost.lost_weight) == (("batch2_medium",), 0.0)
    (lost,) = shrinkage(synthetic.make_run(cases=[*synthetic.CASES[:3], "batch2_medium"]), baseline)
    assert (lost.cases, lost.lost_weight) == (("zimage_1024",), pytest.approx(4 / (1 + 2 + 3 + 4)))


def test_a_whole_suite_that_is_gone_is_named(synthetic: ModuleType) -> None:
    (lost,) = shrinkage(synthetic.make_run(suite="other"), synthetic.make_run())
    assert (lost.suite, lost.lost_weight, len(lost.cases)) == ("qknorm_rope", pytest.approx(1.0), 5)


def test_kernels_that_no_longer_run_are_not_lost_in_silence(synthetic: ModuleType) -> None:
    run = synthetic.make_run(
        kernels=list(synthetic.KERNELS)[1:],
        status={
            ("flux_1024", synthetic.FUSED): (Status.UNSUPPORTED, "declines now"),
            ("zimage_1024", synthetic.FUSED): (Status.CHECKED, ""),
            ("batch2_medium", synthetic.FUSED): (Status.WRONG, "has a verdict of its own"),
        },
    )
    (lost,) = shrinkage(run, synthetic.make_run())
    assert len(lost.kernels) == 5 + 1
    assert f"flux_1024: {synthetic.FUSED}" in lost.kernels
    assert lost.untimed == (f"zimage_1024: {synthetic.FUSED}",)
    assert lost.lost_weight == 0.0
    assert "1 kernel is no longer timed" in str(lost)


def test_a_check_that_is_no_longer_made_is_lost(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    blind = msgspec.structs.replace(run, results=[msgspec.structs.replace(run.results[0], accuracy=None), *run.results[1:]])
    (lost,) = shrinkage(blind, run)
    assert lost.unchecked == (f"flux_1024: {run.results[0].kernel}",)


def with_code(run: Run, code: str | None) -> Run:
    return msgspec.structs.replace(run, results=[msgspec.structs.replace(result, code=code) for result in run.results])


@pytest.mark.parametrize(
    ("code", "triton", "words"),
    [
        ("old", "3.6.0", "machine code is the baseline's"),
        ("old", "3.9.0", "machine code is the baseline's"),
        (None, "3.6.0", "is not recorded"),
        (None, "3.9.0", ""),
        ("new", "3.6.0", ""),
    ],
)
def test_an_improvement_needs_a_cause(synthetic: ModuleType, code: str | None, triton: str, words: str) -> None:
    run = with_code(synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 0.9}, environment={"triton": triton}), code)
    baseline = with_code(synthetic.make_run(), "old")
    found = unexplained_improvements(judge_each(run, baseline, MarginRule()), run, baseline)
    assert [(one.case, one.kernel) for one in found] == ([("flux_1024", synthetic.FUSED)] if words else [])
    assert all(words in one.reason and one.reason.startswith("-10.00 %") for one in found)


@pytest.mark.parametrize(("before", "explained"), [("12.8", True), ("13.0", False), ("", False)])
def test_what_a_record_does_not_say_of_the_toolchain_is_no_cause(synthetic: ModuleType, before: str, explained: bool) -> None:
    """Records from before the assembler was kept do not say that it was another."""
    run = synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 0.9}, environment={"ptxas": "13.0"})
    baseline = synthetic.make_run(environment={"ptxas": before})
    found = unexplained_improvements(judge_each(run, baseline, MarginRule()), run, baseline)
    assert [one.kernel for one in found] == ([] if explained else [synthetic.FUSED])


def test_no_code_accounts_for_a_kernel_that_leaves_its_yardsticks_behind(synthetic: ModuleType) -> None:
    """The fused kernel takes 1.08 times the copy's time; planted is 0.9 times."""
    run = with_code(synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 0.9 / 1.08}, environment={"triton": "3.9.0"}), "new")
    baseline = with_code(synthetic.make_run(), "old")
    (found,) = unexplained_improvements(judge_each(run, baseline, MarginRule()), run, baseline)
    assert "at 111 % of the speed of its faster yardstick, beyond the 110 %" in found.reason


def test_what_did_not_improve_needs_no_explanation(synthetic: ModuleType) -> None:
    run, baseline = synthetic.make_run(), synthetic.make_run()
    assert unexplained_improvements(judge_each(run, baseline, MarginRule()), run, baseline) == []


def test_a_kernel_that_now_covers_a_part_is_lost(synthetic: ModuleType) -> None:
    run, baseline = synthetic.make_run(), synthetic.make_run()
    part = msgspec.structs.replace(run.results[0], covers="norm only: no rotation")
    (lost,) = shrinkage(msgspec.structs.replace(run, results=[part, *run.results[1:]]), baseline)
    assert lost.kernels == (f"flux_1024: {part.kernel}",)
    both = msgspec.structs.replace(baseline, results=[part, *baseline.results[1:]])
    assert shrinkage(both, both) == [], "a part that stays the part is not lost"


def test_compiled_code_needs_no_cause_unless_it_leaves_its_yardsticks_behind(synthetic: ModuleType) -> None:
    """It takes 1.6 times the copy's time."""
    place, baseline = ("flux_1024", f"{synthetic.OP}/compiled@1"), synthetic.make_run()
    faster, impossible = (synthetic.make_run(slow={place: factor}) for factor in (0.8, 0.9 / 1.6))
    assert unexplained_improvements(judge_each(faster, baseline, MarginRule()), faster, baseline) == []
    (found,) = unexplained_improvements(judge_each(impossible, baseline, MarginRule()), impossible, baseline)
    assert (found.kernel, "faster yardstick, beyond the 110 %" in found.reason) == (place[1], True)
