"""The time of the kernel that dispatch takes over the best one's, and when a worse choice is a regression."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.schema import ExitCode, Run
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.dispatch_choice import dispatch_losses, dispatch_ratios, shares
from fusebench.verdict.exit_status import gate_exit_code
from fusebench.verdict.margins.rule import MarginRule

OLD, BEST, CUDA = "qknorm_rope/fused_triton@1", "qknorm_rope/fused_triton@2", "qknorm_rope/fused_cuda@1"
"""1.25, 1.08 and 1.11 times the copy: CUDA is 1.028x the best, OLD 1.157x."""


def taking(run: Run, kernel: str) -> Run:
    """`run` with `kernel` as dispatch's choice for every case."""
    return msgspec.structs.replace(run, cases=[msgspec.structs.replace(one, dispatched=kernel) for one in run.cases])


def test_the_choice_is_compared_with_the_best_fused_kernel(synthetic: ModuleType) -> None:
    run = taking(synthetic.make_run(), CUDA)
    ratios = dispatch_ratios(run)
    assert {(one.kernel, one.best, round(one.ratio, 3), one.apart) for one in ratios} == {(CUDA, BEST, 1.028, True)}
    assert shares([one.ratio for one in ratios]) == (0.0, 1.0)


@pytest.mark.parametrize("kernel", ["", "qknorm_rope/split_torch@1", "qknorm_rope/gone@1"])
def test_a_choice_without_a_fused_time_has_no_ratio(synthetic: ModuleType, kernel: str) -> None:
    assert dispatch_ratios(taking(synthetic.make_run(), kernel)) == []


def test_a_suspicious_time_is_neither_the_best_nor_a_choice(synthetic: ModuleType) -> None:
    run = taking(synthetic.make_run(), CUDA)
    doubted = [msgspec.structs.replace(one, suspicious="too fast") if one.kernel == BEST else one for one in run.results]
    assert {one.best for one in dispatch_ratios(msgspec.structs.replace(run, results=doubted))} == {CUDA}
    assert dispatch_ratios(msgspec.structs.replace(taking(run, BEST), results=doubted)) == []


@pytest.mark.parametrize(
    ("before", "now", "run", "lost"),
    [
        (BEST, OLD, {}, 5),
        (BEST, CUDA, {}, 0),  # 1.03x is within the limit
        (OLD, BEST, {}, 0),  # better
        (BEST, OLD, {"half": 0.2}, 0),  # the intervals are not apart
        (OLD, OLD, {"slow": {("flux_1024", OLD): 2.0}}, 0),  # the same choice: the kernel's own verdict tells
        ("", OLD, {}, 0),  # an older record
        ("qknorm_rope/gone@1", OLD, {}, 5),  # the best stands for a kernel that is gone
    ],
)
def test_a_slower_choice_than_the_baselines_is_a_loss(
    synthetic: ModuleType, before: str, now: str, run: dict[str, object], lost: int
) -> None:
    base, head = taking(synthetic.make_run(run_id="base"), before), taking(synthetic.make_run(**run), now)
    losses = dispatch_losses(head, base)
    assert len(losses) == lost
    assert all(one.before == BEST and 1.15 < one.ratio < 1.17 for one in losses)


def test_a_loss_fails_the_run_and_the_gate_and_is_remarked(synthetic: ModuleType) -> None:
    base, head = taking(synthetic.make_run(run_id="base"), BEST), taking(synthetic.make_run(), OLD)
    found = judge_run(head, base, MarginRule(None, device="cuda"))
    assert found.exit_code is ExitCode.REGRESSION
    assert "dispatch takes qknorm_rope/fused_triton@1 on qknorm_rope:flux_1024, 1.16x the time of qknorm_rope/fused_triton@2" in str(
        found.remarks
    )
    assert gate_exit_code(found.judgements, dispatch_lost=True) is ExitCode.REGRESSION
    unchanged = judge_run(taking(head, BEST), base, MarginRule(None, device="cuda"))
    assert (unchanged.exit_code, unchanged.dispatch_losses) == (ExitCode.PASS, ())
