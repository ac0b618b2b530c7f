"""The cases and layouts that an evaluation compares beside those that it times, and what their failures say."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fusebench.judge.channel.protocol import CaseOpened
from fusebench.judge.failures import CandidateError
from fusebench.schema import Case
from fusebench.schema.evaluation import EvaluationStatus
from judge.bench import evaluating


def case(name: str, **params: Any) -> Case:
    params = {"hidden": 64, "tokens": 4096, **params}
    return Case(name=name, suite="s", op="norm_scale_shift", params=params, weight=1.0, source="")


def in_another_layout(
    fails: CandidateError | None, *, declined: str | None = None, fails_everywhere: bool = False
) -> tuple[Any, list[Any]]:
    """An evaluation after a case was compared in another layout, where the candidate fails; and the strides of all compared calls."""
    one, asked = evaluating([])
    params = one._op.parse_params({"hidden": 64, "tokens": 64})
    one._layouts_left, one._process, strided = 1, SimpleNamespace(alive=True), list[bool]()
    one._asked = lambda params: asked.append(params) or CaseOpened(token="", declined=declined if params.strided else None)

    def compare(least: int) -> None:
        strided.append(asked[-1].strided)
        if fails is not None and (asked[-1].strided or fails_everywhere):
            raise fails

    judge = SimpleNamespace(compare=compare, found=SimpleNamespace(compared=20))
    one._judge_of = lambda opened, params: judge
    one._compare_other_layout(judge, params)
    assert asked[-1] == params, "the case is open again"
    return one, strided


def test_a_kernel_that_is_wrong_in_another_layout_is_found() -> None:
    """At two samples, so that a modulation has a second row."""
    with pytest.raises(CandidateError, match=r"at 2x\d+x64 bf16 strided: far off") as caught:
        in_another_layout(CandidateError(EvaluationStatus.WRONG, "far off"))
    assert caught.value.status is EvaluationStatus.WRONG


def test_a_kernel_that_declines_a_layout_is_not_compared_in_it() -> None:
    one, strided = in_another_layout(CandidateError(EvaluationStatus.WRONG, "far off"), declined="strided")
    assert (one._remarks, strided) == ([], [])
    assert one._layouts_s > 0


def test_a_kernel_that_raises_in_another_layout_has_declined_it() -> None:
    one, strided = in_another_layout(CandidateError(EvaluationStatus.CRASHED, "AssertionError: contiguous"))
    assert strided == [True, False], "it is right afterwards"
    assert one._remarks[0].endswith("strided: AssertionError: contiguous. A kernel declines such a case in its supports().")


def test_a_kernel_that_fails_ever_after_has_crashed() -> None:
    """A misaligned access ends the device's context."""
    with pytest.raises(CandidateError) as caught:
        in_another_layout(CandidateError(EvaluationStatus.CRASHED, "misaligned address"), fails_everywhere=True)
    assert caught.value.status is EvaluationStatus.CRASHED


def test_a_kernel_that_is_wrong_in_a_case_that_was_not_drawn_is_found() -> None:
    cases = [case("drawn"), case("longer", tokens=8192), case("half", dtype="float16")]
    one, asked = evaluating(cases)
    assert one._others(cases[:1]) == []
    assert [params.dtype for params in asked] == ["float16"], "a case that differs in tokens alone says nothing new"
    one, _ = evaluating([*cases, case("rms", norm="rms")])
    (failed,) = one._others(cases[:1])
    assert (failed.case, failed.status) == ("rms", EvaluationStatus.WRONG)
    assert "rms" in failed.reason


@pytest.mark.parametrize(("waited", "alive", "found"), [(60.0, False, 1), (1.0, False, 0), (60.0, True, 0)])
def test_a_call_that_lasts_until_the_budget_ends_hides_no_other_case(
    waited: float, alive: bool, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`alive`: it answered, and the judge's own time ended."""
    one, _ = evaluating([case("drawn"), case("half", dtype="float16")])
    now = time.monotonic()
    monkeypatch.setattr("fusebench.judge.evaluating.time", SimpleNamespace(monotonic=lambda: now))

    def compare(calls: int) -> None:
        nonlocal now
        now += waited
        raise CandidateError(EvaluationStatus.UNDECIDED, "the budget ended")

    one._judge_of, one._process = lambda opened, params: SimpleNamespace(compare=compare), SimpleNamespace(alive=alive)
    failed = one._others([case("drawn")])
    assert [(each.case, each.status) for each in failed] == [("half", EvaluationStatus.UNDECIDED)] * found


def test_other_cases_are_left_out_where_a_batch_takes_longer_than_they_may() -> None:
    one, asked = evaluating([case("drawn"), case("half", dtype="float16")])
    one._limits.longest_s = 60.0
    assert one._others([case("drawn")]) == []
    assert asked == []


def test_a_case_that_was_left_out_is_compared_at_a_small_size_as_often_as_it_is_due() -> None:
    one, _ = evaluating(cases := [case("drawn"), case("longer", tokens=8192)])
    one._drawn, due = 2, []
    one._judge_of = lambda opened, params: SimpleNamespace(compare=due.append)
    one._limits.longest_s = 60.0
    assert one._others(cases[:1], cases[1:]) == []
    assert due == [114]


def test_an_interpreted_kernel_is_judged_on_as_many_cases_as_there_is_time_for() -> None:
    one, _ = evaluating([], seconds=60.0)
    one._began -= 30.0
    assert one._time_for_another(2)
    one._limits.deadline = time.monotonic() + 40.0
    assert not one._time_for_another(1)
