from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import Role, Run, Status
from fusebench.stats.gating import judge_run
from fusebench.stats.rule import MarginRule
from fusebench.stats.suite_changes import not_selected, shrinkage, unexplained_improvements
from fusebench.stats.whole_run import judge_whole

WHERE = "qknorm_rope:flux_1024"


def test_an_untouched_suite_has_not_shrunk(synthetic: ModuleType) -> None:
    assert shrinkage(synthetic.make_run(), synthetic.make_run()) == []
    assert shrinkage(synthetic.make_run(), synthetic.make_run(cases=synthetic.CASES[:2])) == [], "growing is not shrinking"


def test_lost_cases_are_weighed(synthetic: ModuleType) -> None:
    (lost,) = shrinkage(synthetic.make_run(cases=synthetic.CASES[:3]), synthetic.make_run())
    assert lost.cases == ("zimage_1024", "batch2_medium")
    assert lost.kernels == ()
    assert lost.lost_weight == pytest.approx((4 + 5) / (1 + 2 + 3 + 4 + 5))
    assert str(lost) == "suite qknorm_rope has shrunk (60.0% of its weight): 2 cases are gone: zimage_1024, batch2_medium"


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


def both_suites(synthetic: ModuleType, selected: tuple[str, ...] | None) -> Run:
    """A run of `qknorm_rope` and of `other`."""
    one, two = synthetic.make_run(), synthetic.make_run(suite="other")
    return msgspec.structs.replace(one, cases=[*one.cases, *two.cases], results=[*one.results, *two.results], selected=selected)


@pytest.mark.parametrize("selected", [None, ("qknorm_rope",)])
def test_a_run_of_one_suite_is_judged_by_that_suite_of_the_baseline(synthetic: ModuleType, selected: tuple[str, ...] | None) -> None:
    run = msgspec.structs.replace(synthetic.make_run(), selected=selected)
    baseline = both_suites(synthetic, ("nightly",))
    judged = judge_whole(run, baseline, MarginRule())
    assert judged.not_selected == ("other",)
    assert judged.shrunken == ()
    assert {one.suite for one in judged.judgements} == {"qknorm_rope"}


def test_a_suite_that_the_same_selection_no_longer_holds_has_shrunk(synthetic: ModuleType) -> None:
    run = msgspec.structs.replace(synthetic.make_run(), selected=("nightly",))
    judged = judge_whole(run, both_suites(synthetic, ("nightly",)), MarginRule())
    assert judged.not_selected == ()
    assert [one.suite for one in judged.shrunken] == ["other"]


def test_a_run_of_some_kernels_is_judged_by_those_of_the_baseline(synthetic: ModuleType) -> None:
    whole = synthetic.make_run()
    some = [result for result in whole.results if "fused" in result.kernel or result.role is Role.SPLIT]
    run = msgspec.structs.replace(whole, results=some[:-1], selected_kernels="*fused*")
    judged = judge_whole(run, whole, MarginRule())
    assert {one.kernel for one in judged.judgements} == {result.kernel for result in some}
    assert [f"{some[-1].case}: {some[-1].kernel}"] == [place for one in judged.shrunken for place in one.kernels], "one of them is lost"
    assert judge_whole(run, msgspec.structs.replace(whole, selected_kernels="*fused*"), MarginRule()).shrunken != ()


def test_a_run_that_shares_no_suite_with_the_baseline_has_lost_all(synthetic: ModuleType) -> None:
    assert not_selected(synthetic.make_run(suite="third"), both_suites(synthetic, None)) == ()


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
    assert "1 kernels are no longer timed" in str(lost)


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
    found = unexplained_improvements(judge_run(run, baseline, MarginRule()), run, baseline)
    assert [(one.case, one.kernel) for one in found] == ([("flux_1024", synthetic.FUSED)] if words else [])
    assert all(words in one.reason and one.reason.startswith("-10.00%") for one in found)


def test_no_code_accounts_for_a_kernel_that_leaves_its_yardsticks_behind(synthetic: ModuleType) -> None:
    """The fused kernel takes 1.08 times the copy's time; planted is 0.9 times."""
    run = with_code(synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 0.9 / 1.08}, environment={"triton": "3.9.0"}), "new")
    baseline = with_code(synthetic.make_run(), "old")
    (found,) = unexplained_improvements(judge_run(run, baseline, MarginRule()), run, baseline)
    assert "at 111% of the speed of its faster yardstick, beyond the 110%" in found.reason


def test_what_did_not_improve_needs_no_explanation(synthetic: ModuleType) -> None:
    run, baseline = synthetic.make_run(), synthetic.make_run()
    assert unexplained_improvements(judge_run(run, baseline, MarginRule()), run, baseline) == []


def test_a_kernel_that_now_covers_a_part_is_lost(synthetic: ModuleType) -> None:
    run, baseline = synthetic.make_run(), synthetic.make_run()
    part = msgspec.structs.replace(run.results[0], covers="norm only: no rotation")
    (lost,) = shrinkage(msgspec.structs.replace(run, results=[part, *run.results[1:]]), baseline)
    assert lost.kernels == (f"flux_1024: {part.kernel}",)
    both = msgspec.structs.replace(baseline, results=[part, *baseline.results[1:]])
    assert shrinkage(both, both) == [], "a part that stays the part is not lost"
