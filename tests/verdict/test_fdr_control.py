from __future__ import annotations

from collections import Counter
from types import ModuleType

import msgspec
import pytest

from fusebench.schema import Role, Run, Verdict, VerdictKind
from fusebench.stats.student import p_slower_of
from fusebench.verdict.baseline.judgement import judge_each
from fusebench.verdict.fdr_control import fdr_controlled
from fusebench.verdict.margins.rule import MarginRule

RULE = MarginRule()
HALF = 0.008
"""Half-width of each interval; that of a kernel relative to the stream, new over old, is twice as wide: 1.6 %."""

BORDERLINE = 1.0415
"""Beyond the margin by 2.9 standard errors: p = 0.8 %."""


def kinds(synthetic: ModuleType, **new: object) -> tuple[Counter[VerdictKind], Counter[VerdictKind]]:
    """Verdicts before and after the suite is taken into account."""
    run, baseline = synthetic.make_run(half=HALF, **new), synthetic.make_run(half=HALF)
    judgements = judge_each(run, baseline, RULE)
    held = fdr_controlled(judgements, run, baseline, RULE)
    assert [(one.case, one.kernel) for one in held] == [(one.case, one.kernel) for one in judgements]
    return tuple(Counter(one.verdict.kind for one in each) for each in (judgements, held))  # type: ignore[return-value]


def test_a_borderline_regression_among_thirty_comparisons_is_no_finding(synthetic: ModuleType) -> None:
    before, after = kinds(synthetic, slow={("flux_1024", synthetic.FUSED): BORDERLINE})
    assert (before[VerdictKind.REGRESSION], after[VerdictKind.REGRESSION], after[VerdictKind.UNDECIDED]) == (1, 0, 1)


def test_a_clear_one_stands(synthetic: ModuleType) -> None:
    before, after = kinds(synthetic, slow={("flux_1024", synthetic.FUSED): 1.08})
    assert (before[VerdictKind.REGRESSION], after[VerdictKind.REGRESSION]) == (1, 1)


def test_many_borderline_ones_stand_together(synthetic: ModuleType) -> None:
    before, after = kinds(synthetic, slow={(case, synthetic.FUSED): BORDERLINE for case in synthetic.CASES})
    assert before[VerdictKind.REGRESSION] == after[VerdictKind.REGRESSION] == 5


def test_a_loss_of_accuracy_is_no_matter_of_chance(synthetic: ModuleType) -> None:
    place = ("flux_1024", synthetic.FUSED)
    for slow in ({}, {place: BORDERLINE}):
        before, after = kinds(synthetic, errors={place: 1.4}, slow=slow)
        assert before[VerdictKind.REGRESSION] == after[VerdictKind.REGRESSION] == 1


def test_where_several_processes_measured_the_p_value_is_over_them(synthetic: ModuleType) -> None:
    """The interval is Student's over eight processes, not over their 96 replicates: its tail is heavier."""

    def measured_in(run: Run, processes: int) -> Run:
        timings = [msgspec.structs.replace(one.measurement, replicates=96, processes=processes) for one in run.results if one.measurement]
        return msgspec.structs.replace(
            run, results=[msgspec.structs.replace(one, measurement=timing) for one, timing in zip(run.results, timings, strict=True)]
        )

    place = ("flux_1024", synthetic.FUSED)
    found = {}
    for processes in (1, 8):
        run, old = (measured_in(synthetic.make_run(half=HALF, slow=slow), processes) for slow in ({place: BORDERLINE}, {}))
        held = fdr_controlled(judge_each(run, old, RULE), run, old, RULE)
        found[processes] = next(one.verdict for one in held if (one.case, one.kernel) == place)
    change, margin = found[8].change, found[8].margin
    assert change is not None
    assert margin is not None
    assert found[8].p_value == pytest.approx(p_slower_of(change, margin, 7))
    assert found[1].p_value == pytest.approx(p_slower_of(change, margin, 95))


def test_the_reason_says_how_far_it_was_from_a_finding(synthetic: ModuleType) -> None:
    place = ("flux_1024", synthetic.FUSED)
    run, baseline = synthetic.make_run(half=HALF, slow={place: BORDERLINE}), synthetic.make_run(half=HALF)
    held = fdr_controlled(judge_each(run, baseline, RULE), run, baseline, RULE)
    reason = next(one.verdict.reason for one in held if (one.case, one.kernel) == place)
    assert "slower beyond" in reason
    assert "among 25 comparisons it is not significant (adjusted p" in reason


def test_nothing_to_compare_is_nothing_to_hold(synthetic: ModuleType) -> None:
    run, baseline = synthetic.make_run(timer="cuda_events"), synthetic.make_run()
    judgements = judge_each(run, baseline, RULE)
    assert fdr_controlled(judgements, run, baseline, RULE) == judgements
    with pytest.raises(ValueError, match="rate=1"):
        fdr_controlled(judgements, run, baseline, RULE, rate=1.0)


def test_a_verdict_carries_what_it_was_decided_by(synthetic: ModuleType) -> None:
    place = ("flux_1024", synthetic.FUSED)
    run, baseline = synthetic.make_run(half=HALF, slow={place: 1.08}), synthetic.make_run(half=HALF)
    held = {(one.case, one.kernel): one.verdict for one in fdr_controlled(judge_each(run, baseline, RULE), run, baseline, RULE)}
    slow, same = held[place], held["zimage_1024", synthetic.FUSED]
    assert (slow.margin, same.margin) == (RULE.margin, RULE.margin)
    assert slow.p_value < slow.adjusted_p < 0.05 < same.p_value
    assert slow.adjusted_p == pytest.approx(25 * slow.p_value), "compiled@1 has no say on the five cases"


@pytest.mark.parametrize("role", [Role.COMPILED, Role.PEER])
def test_an_advisory_verdict_makes_no_room_for_others(synthetic: ModuleType, role: Role) -> None:
    """Clear findings beside it let the borderline one stand; those of kernels without a say do not, and keep their own verdicts."""
    place, other = ("flux_1024", synthetic.FUSED), f"{synthetic.OP}/fused_cuda@1"

    def held(of: Role) -> dict[tuple[str, str], Verdict]:
        slow = {place: BORDERLINE, **{(case, other): 1.2 for case in synthetic.CASES}}
        run, baseline = (
            msgspec.structs.replace(
                run, results=[msgspec.structs.replace(one, role=of) if one.kernel == other else one for one in run.results]
            )
            for run in (synthetic.make_run(half=HALF, slow=slow), synthetic.make_run(half=HALF))
        )
        return {(one.case, one.kernel): one.verdict for one in fdr_controlled(judge_each(run, baseline, RULE), run, baseline, RULE)}

    assert held(Role.FUSED)[place].kind is VerdictKind.REGRESSION
    found = held(role)
    assert found[place].kind is VerdictKind.UNDECIDED
    assert "among 20 comparisons" in found[place].reason
    silent = found["flux_1024", other]
    assert (silent.kind, silent.gating, silent.adjusted_p, silent.margin) == (VerdictKind.REGRESSION, False, None, RULE.margin)
    assert silent.p_value is not None
    assert silent.p_value < 1e-6
