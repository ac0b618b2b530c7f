"""A run that was asked for a part of what the baseline holds is judged by that part, and what it was asked for is missed all the same."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import ExitCode, Role, Run
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.baseline.judgement import Presence
from fusebench.verdict.baseline.scope import scoped_baseline
from fusebench.verdict.exit_status import gate_exit_code
from fusebench.verdict.margins.rule import MarginRule


def both_suites(synthetic: ModuleType, selected: tuple[str, ...] | None) -> Run:
    """A run of `qknorm_rope` and of `other`."""
    one, two = synthetic.make_run(), synthetic.make_run(suite="other")
    both = {name: [*getattr(one, name), *getattr(two, name)] for name in ("suites", "cases", "results")}
    return msgspec.structs.replace(one, **both, selected=selected)


@pytest.mark.parametrize("selected", [None, ("qknorm_rope",)])
def test_a_run_of_one_suite_is_judged_by_that_suite_of_the_baseline(synthetic: ModuleType, selected: tuple[str, ...] | None) -> None:
    run = msgspec.structs.replace(synthetic.make_run(), selected=selected)
    baseline = both_suites(synthetic, ("nightly",))
    judged = judge_run(run, baseline, MarginRule())
    assert judged.not_selected == ("other",)
    assert judged.shrunken == ()
    assert {one.suite for one in judged.judgements} == {"qknorm_rope"}


def test_a_suite_that_the_same_selection_no_longer_holds_has_shrunk(synthetic: ModuleType) -> None:
    run = msgspec.structs.replace(synthetic.make_run(), selected=("nightly",))
    judged = judge_run(run, both_suites(synthetic, ("nightly",)), MarginRule())
    assert judged.not_selected == ()
    assert [one.suite for one in judged.shrunken] == ["other"]


def test_a_run_of_some_kernels_is_judged_by_those_of_the_baseline(synthetic: ModuleType) -> None:
    whole = synthetic.make_run()
    some = [result for result in whole.results if "fused" in result.kernel or result.role is Role.SPLIT]
    run = msgspec.structs.replace(whole, results=some[:-1], selected_kernels="*fused*")
    judged = judge_run(run, whole, MarginRule())
    assert {one.kernel for one in judged.judgements} == {result.kernel for result in some}
    assert [f"{some[-1].case}: {some[-1].kernel}"] == [place for one in judged.shrunken for place in one.kernels], "one of them is lost"
    assert judge_run(run, msgspec.structs.replace(whole, selected_kernels="*fused*"), MarginRule()).shrunken != ()


def test_a_run_that_shares_no_suite_with_the_baseline_has_lost_all(synthetic: ModuleType) -> None:
    whole = both_suites(synthetic, None)
    judged = judge_run(synthetic.make_run(suite="third"), whole, MarginRule())
    assert (judged.not_selected, judged.not_selected_cases) == ((), ())
    assert [one.suite for one in judged.shrunken] == ["qknorm_rope", "other"]


def test_a_suite_that_was_named_and_is_absent_has_shrunk(synthetic: ModuleType) -> None:
    run = msgspec.structs.replace(synthetic.make_run(), selected=("qknorm_rope", "other"))
    judged = judge_run(run, both_suites(synthetic, ("nightly",)), MarginRule())
    assert judged.not_selected == ()
    assert [one.suite for one in judged.shrunken] == ["other"]


def run_of_cases(synthetic: ModuleType, glob: str | None, held: list[str], **fields: object) -> Run:
    """A run of `qknorm_rope` that was asked for the cases `glob` and holds these."""
    whole = synthetic.make_run(run_id="new", selected=("qknorm_rope",), selected_cases=glob, **fields)
    return msgspec.structs.replace(
        whole,
        cases=[one for one in whole.cases if one.case.name in held],
        results=[result for result in whole.results if result.case in held],
    )


@pytest.mark.parametrize("selected", [None, ("qknorm_rope",), ("nightly",)])
@pytest.mark.parametrize("glob", ["qwen_*", "qknorm_rope:qwen_*"])
def test_a_run_of_some_cases_is_judged_by_those_of_the_baseline(synthetic: ModuleType, glob: str, selected: tuple[str, ...] | None) -> None:
    run = run_of_cases(synthetic, glob, ["qwen_image_1024", "qwen_image_partial"])
    whole = msgspec.structs.replace(synthetic.make_run(), selected=selected)
    judged = judge_run(run, whole, MarginRule())
    assert {one.case for one in judged.judgements} == {"qwen_image_1024", "qwen_image_partial"}
    assert (judged.shrunken, judged.not_selected) == ((), ())
    assert judged.not_selected_cases == ("qknorm_rope:flux_1024", "qknorm_rope:zimage_1024", "qknorm_rope:batch2_medium")
    assert gate_exit_code(judged.judgements) is ExitCode.PASS


@pytest.mark.parametrize("selected_by_both", [None, "qwen_*"])
def test_a_case_that_was_asked_for_and_is_missing_is_lost(synthetic: ModuleType, selected_by_both: str | None) -> None:
    run = run_of_cases(synthetic, "qwen_*", ["qwen_image_1024"])
    baseline = msgspec.structs.replace(synthetic.make_run(), selected_cases=selected_by_both)
    judged = judge_run(run, baseline, MarginRule())
    (lost,) = judged.shrunken
    assert (lost.cases, lost.lost_weight) == (("qwen_image_partial",), pytest.approx(3 / (2 + 3))), "of the weight that was asked for"
    assert {one.case for one in judged.judgements if one.presence is Presence.MISSING} == {"qwen_image_partial"}
    assert gate_exit_code(judged.judgements) is ExitCode.UNDECIDED


def test_a_record_that_does_not_name_its_cases_was_asked_for_all(synthetic: ModuleType) -> None:
    judged = judge_run(run_of_cases(synthetic, None, ["flux_1024"]), synthetic.make_run(), MarginRule())
    assert [len(one.cases) for one in judged.shrunken] == [4]
    assert judged.not_selected_cases == ()
    assert gate_exit_code(judged.judgements) is ExitCode.UNDECIDED


def test_a_suite_of_which_no_case_was_asked_for_is_named_as_one(synthetic: ModuleType) -> None:
    """Also where both were asked for the same suites: none of its cases could be in the run."""
    run = run_of_cases(synthetic, "qknorm_rope:flux_*", ["flux_1024"])
    run = msgspec.structs.replace(run, selected=("nightly",))
    judged = judge_run(run, both_suites(synthetic, ("nightly",)), MarginRule())
    assert judged.not_selected == ("other",)
    assert [key.partition(":")[0] for key in judged.not_selected_cases] == ["qknorm_rope"] * 4
    assert judged.shrunken == ()
    run = msgspec.structs.replace(run, selected_cases="flux_*")
    (lost,) = judge_run(run, both_suites(synthetic, ("nightly",)), MarginRule()).shrunken
    assert (lost.suite, lost.cases) == ("other", ("flux_1024",)), "a case of that name was asked for in every suite"


def with_other_op(run: Run, names: list[str]) -> Run:
    """`run` with these cases being of another op."""
    other = {one.case.name: msgspec.structs.replace(one.case, op="rotary_embedding") for one in run.cases if one.case.name in names}
    return msgspec.structs.replace(run, cases=[msgspec.structs.replace(one, case=other.get(one.case.name, one.case)) for one in run.cases])


def test_a_run_of_one_op_is_judged_by_its_cases_of_the_baseline(synthetic: ModuleType) -> None:
    mixed = with_other_op(synthetic.make_run(), ["zimage_1024", "batch2_medium"])
    run = msgspec.structs.replace(synthetic.make_run(cases=synthetic.CASES[:3]), selected_op="qknorm_rope")
    judged = judge_run(run, mixed, MarginRule())
    assert (judged.shrunken, judged.not_selected_cases) == ((), ("qknorm_rope:zimage_1024", "qknorm_rope:batch2_medium"))
    assert gate_exit_code(judged.judgements) is ExitCode.PASS
    fewer = msgspec.structs.replace(synthetic.make_run(cases=synthetic.CASES[:2]), selected_op="qknorm_rope")
    assert [one.cases for one in judge_run(fewer, mixed, MarginRule()).shrunken] == [("qwen_image_partial",)]
    assert judge_run(msgspec.structs.replace(run, selected_cases="flux_*"), mixed, MarginRule()).not_selected_cases == tuple(
        f"qknorm_rope:{name}" for name in synthetic.CASES[1:]
    )


def test_some_kernels_of_some_cases(synthetic: ModuleType) -> None:
    kernels = [synthetic.FUSED, synthetic.BASELINE]
    run = run_of_cases(synthetic, "flux_*", ["flux_1024"], kernels=kernels, selected_kernels="fused_triton@2")
    judged = judge_run(run, synthetic.make_run(), MarginRule())
    assert [(one.case, one.kernel) for one in judged.judgements] == [("flux_1024", kernel) for kernel in kernels]
    assert judged.shrunken == ()


def test_a_regression_among_some_cases_is_one(synthetic: ModuleType) -> None:
    run = run_of_cases(synthetic, "flux_*", ["flux_1024"], slow={("flux_1024", synthetic.FUSED): 1.1})
    assert gate_exit_code(judge_run(run, synthetic.make_run(), MarginRule()).judgements) is ExitCode.REGRESSION


def test_a_case_that_the_baseline_lacks_is_new_to_its_suite_and_nothing_was_compared(synthetic: ModuleType) -> None:
    run = run_of_cases(synthetic, "flux_*", ["flux_1024"])
    judged = judge_run(run, synthetic.make_run(cases=synthetic.CASES[1:]), MarginRule())
    assert {(one.presence, one.verdict.reason) for one in judged.judgements} == {(Presence.NEW, "not in the baseline")}
    assert judged.not_selected == ("qknorm_rope",)
    assert gate_exit_code(judged.judgements, allow_incomparable=True) is ExitCode.UNDECIDED
    elsewhere = judge_run(run, synthetic.make_run(suite="other"), MarginRule())
    assert "which is of another suite: other -> qknorm_rope" in elsewhere.judgements[0].verdict.reason


def test_a_whole_run_against_a_baseline_of_some_cases_has_new_ones(synthetic: ModuleType) -> None:
    judged = judge_run(synthetic.make_run(), run_of_cases(synthetic, "flux_*", ["flux_1024"]), MarginRule())
    assert {one.case for one in judged.judgements if one.presence is Presence.NEW} == set(synthetic.CASES[1:])
    assert judged.shrunken == ()
    assert gate_exit_code(judged.judgements) is ExitCode.PASS


def test_a_tunable_choice_that_the_run_lacks_is_out_of_scope(synthetic: ModuleType) -> None:
    baseline, choice = synthetic.make_run(), "qknorm_rope/fused_triton__two_warps@2"
    more = [msgspec.structs.replace(one, kernel=choice) for one in baseline.results if one.kernel == "qknorm_rope/fused_triton@2"]
    with_choice = msgspec.structs.replace(baseline, results=[*baseline.results, *more])
    assert scoped_baseline(baseline, with_choice).results == baseline.results
    assert scoped_baseline(with_choice, with_choice).results == with_choice.results
