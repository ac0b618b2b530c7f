"""The gate passes over kernels that compute a part of their op, whatever their times did, and notices one that has become a part."""

from __future__ import annotations

from types import ModuleType

import msgspec

from fusebench.schema import Run, Status, VerdictKind
from fusebench.verdict.baseline.judgement import Judgement, Presence, judge_each
from fusebench.verdict.margins.rule import MarginRule


def as_part(run: Run, kernel: str) -> Run:
    def changed(result):  # type: ignore[no-untyped-def]
        if result.kernel != kernel:
            return result
        timing = result.measurement and msgspec.structs.replace(result.measurement, speedup=None, sol=None)
        return msgspec.structs.replace(result, covers="norm only", measurement=timing)

    return msgspec.structs.replace(run, results=[changed(result) for result in run.results])


def of_fused(judgements: list[Judgement], synthetic: ModuleType) -> list[Judgement]:
    return [one for one in judgements if one.kernel == synthetic.FUSED]


def test_a_part_that_became_slower_or_faster_is_not_judged(synthetic: ModuleType) -> None:
    old = as_part(synthetic.make_run(), synthetic.FUSED)
    for factor in (0.2, 5.0):
        new = as_part(synthetic.make_run(slow={(case, synthetic.FUSED): factor for case in synthetic.CASES}), synthetic.FUSED)
        judgements = judge_each(new, old, MarginRule())
        assert of_fused(judgements, synthetic) == []
        assert {one.verdict.kind for one in judgements} == {VerdictKind.PASS}, "the other kernels are judged as ever"


def test_a_part_that_is_wrong_is_an_error(synthetic: ModuleType) -> None:
    where = ("flux_1024", synthetic.FUSED)
    new = as_part(synthetic.make_run(status={where: (Status.WRONG, "off by one")}), synthetic.FUSED)
    found = of_fused(judge_each(new, as_part(synthetic.make_run(), synthetic.FUSED), MarginRule()), synthetic)
    assert [(one.case, one.verdict.kind) for one in found] == [("flux_1024", VerdictKind.ERROR)]


def test_a_whole_kernel_that_became_a_part_is_missed(synthetic: ModuleType) -> None:
    found = of_fused(judge_each(as_part(synthetic.make_run(), synthetic.FUSED), synthetic.make_run(), MarginRule()), synthetic)
    assert {(one.presence, one.verdict.kind) for one in found} == {(Presence.MISSING, VerdictKind.INCOMPARABLE)}
    assert "now it covers only a part of it: norm only" in found[0].verdict.reason


def test_a_part_that_became_whole_is_new(synthetic: ModuleType) -> None:
    found = of_fused(judge_each(synthetic.make_run(), as_part(synthetic.make_run(), synthetic.FUSED), MarginRule()), synthetic)
    assert {one.presence for one in found} == {Presence.NEW}


def test_records_of_the_first_version_can_still_be_compared(synthetic: ModuleType) -> None:
    old = synthetic.make_run(schema_version=1)
    assert {one.verdict.kind for one in judge_each(synthetic.make_run(), old, MarginRule())} == {VerdictKind.PASS}
