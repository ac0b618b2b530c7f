"""Which results get evidence: what regressed, in a language whose machine code is made here; and nothing else about them changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import msgspec
import pytest

from fusebench.evidence.attached import EvidenceTarget, Key
from fusebench.runner.evidence.regressions import any_regressed, compiled_kernels, explained_comparison, explained_judgements, explained_run
from fusebench.schema import Attachment, CacheState, Case, Environment, Estimate, Role, Run, SamplingPlan, Verdict, VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison, RevisionPresence
from fusebench.verdict.baseline.judgement import judge_each
from fusebench.verdict.margins.rule import MarginRule

SLOWER, PASSED = (Verdict(kind=kind, reason="planted") for kind in (VerdictKind.REGRESSION, VerdictKind.PASS))
EVIDENCE = Attachment(kind="planned", title="planned", rows=(("1",),))


class Asked:
    """A provider that remembers what it was asked, and may fail."""

    kind = title = "planned"

    def __init__(self, error: Exception | None = None) -> None:
        self.suspects: list[Key] = []
        self._error = error

    def explain(self, suspects: Sequence[EvidenceTarget]) -> Mapping[Key, Attachment]:
        self.suspects += [one.key for one in suspects]
        if self._error is not None:
            raise self._error
        return {one.key: EVIDENCE for one in suspects}


@pytest.fixture
def comparison() -> Comparison:
    def kernel(name: str, verdict: Verdict, role: Role = Role.FUSED, case: str = "one") -> ComparedKernel:
        return ComparedKernel(
            case=case, suite="s", op="op", kernel=f"op/{name}@1", role=role, presence=RevisionPresence.BOTH, verdict=verdict
        )

    return Comparison(
        id="x", created="2026-07-27T07:25:47+00:00", command="", timer="host",
        plan=SamplingPlan(replicates=4, rounds=5, cache=CacheState.WARM, trim=0.1), looks=Plan(), aa_pairs=[],
        environment=Environment(device="cpu", device_name="Toy", python="3.12", platform="x", fusebench="0"),
        base=BaseRevision(asked="main"),
        cases=[ComparedCase(case=Case(suite="s", name=name, op="op", params={}), shape="8") for name in ("one", "two")],
        kernels=[
            kernel("slow", SLOWER), kernel("good", PASSED), kernel("in_torch", SLOWER), kernel("peer", SLOWER, Role.PEER),
            kernel("slow", SLOWER, case="two"),
        ], exit_code=1,
    )  # fmt: skip


COMPILED = ("op/slow@1", "op/good@1", "op/peer@1")


def test_of_a_comparison_the_regressions_that_are_compiled_here(comparison: Comparison) -> None:
    asked = Asked()
    explained = explained_comparison(comparison, COMPILED, [asked])
    assert asked.suspects == [("s:one", "op/slow@1"), ("s:two", "op/slow@1")]
    assert [one.attachments for one in explained.kernels] == [(EVIDENCE,), (), (), (), (EVIDENCE,)]
    stripped = [msgspec.structs.replace(one, attachments=()) for one in explained.kernels]
    assert msgspec.structs.replace(explained, kernels=stripped) == comparison


@pytest.mark.parametrize(
    ("change", "margin", "slower"), [(None, None, True), (1.2, 0.03, True), (1.02, 0.03, False), (1.001, None, True), (0.9, None, False)]
)
def test_a_loss_of_accuracy_at_the_same_speed_is_told_apart(
    comparison: Comparison, change: float | None, margin: float | None, slower: bool
) -> None:
    estimate = None if change is None else Estimate(change, change - 0.01, change + 0.01)
    verdict = Verdict(kind=VerdictKind.REGRESSION, reason="planted", change=estimate, margin=margin)
    heard: list[bool] = []

    class Hears(Asked):
        def explain(self, suspects: Sequence[EvidenceTarget]) -> Mapping[Key, Attachment]:
            heard.extend(one.slower for one in suspects)
            return super().explain(suspects)

    slow = comparison.kernels[0]
    explained_comparison(msgspec.structs.replace(comparison, kernels=[msgspec.structs.replace(slow, verdict=verdict)]), COMPILED, [Hears()])
    assert heard == [slower]


def test_a_provider_that_fails_changes_no_verdict_and_no_exit_code(comparison: Comparison) -> None:
    explained = explained_comparison(comparison, COMPILED, [Asked(RuntimeError("planted"))])
    assert [one.verdict for one in explained.kernels] == [one.verdict for one in comparison.kernels]
    assert (explained.exit_code, explained.kernels[0].attachments[0].notes) == (1, ("not collected: RuntimeError: planted",))


def test_an_old_record_without_attachments_is_read(comparison: Comparison) -> None:
    plain = msgspec.to_builtins(comparison)
    for one in plain["kernels"]:
        del one["attachments"]
    assert msgspec.convert(plain, Comparison) == comparison


@pytest.fixture
def run(synthetic: ModuleType) -> Run:
    """Every kernel of one case has regressed, the split chain in torch and torch.compile's code included."""
    return synthetic.change_results(synthetic.make_run(cases=["flux_1024"]), verdict=SLOWER)


def test_of_a_run_the_regressions_in_triton_and_cuda(run: Run) -> None:
    asked = Asked()
    explained = explained_run(run, [asked])
    here = {f"qknorm_rope/{name}" for name in ("split_triton@1", "fused_triton@1", "fused_triton@2", "fused_cuda@1")}
    assert {kernel for _, kernel in asked.suspects} == here == compiled_kernels(run.kernels)
    assert {result.kernel for result in explained.results if result.attachments} == here
    assert msgspec.json.decode(msgspec.json.encode(explained), type=Run) == explained


def test_what_passed_and_what_does_not_decide_asks_nobody(run: Run, synthetic: ModuleType) -> None:
    silent = msgspec.structs.replace(SLOWER, gating=False)
    for quiet in (synthetic.change_results(run, **change) for change in ({"verdict": PASSED}, {"verdict": silent}, {"role": Role.PEER})):
        assert not any_regressed(quiet)
        assert explained_run(quiet, [Asked(AssertionError("asked"))]) == quiet


def test_of_a_gate_what_its_judgements_call_a_regression(synthetic: ModuleType) -> None:
    where = ("flux_1024", synthetic.FUSED)
    run = synthetic.make_run(slow={where: 1.2})
    asked = Asked()
    found = explained_judgements(judge_each(run, synthetic.make_run(), MarginRule()), run, [asked])
    assert found == {("qknorm_rope:flux_1024", synthetic.FUSED): (EVIDENCE,)}
    assert asked.suspects == list(found)
