"""From findings to verdicts over a whole comparison: what stands among many, and what the process then tells its caller."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from fusebench.schema import Confirmation, ConfirmationOutcome, ExitCode, Finding, Role, Status, Verdict, VerdictKind
from fusebench.stats.sequential import judge
from fusebench.store.comparison_record import ComparedKernel, RevisionPresence
from fusebench.verdict.revisions import PENDING, ab_exit_code, judge_revisions


def finding(change: float, seed: int = 1) -> Finding:
    rng = random.Random(seed)
    return judge([math.log(change) + rng.gauss(0.0, 0.002) for _ in range(64)], 20.0)


def compared(**known: Any) -> ComparedKernel:
    fields: dict[str, Any] = {
        "case": "c", "suite": "s", "op": "scale", "kernel": "scale/a@1", "role": Role.FUSED, "presence": RevisionPresence.BOTH,
        "changed_files": ("scale/a.py",), "old_us": 20.0, "verdict": PENDING,
    }  # fmt: skip
    return ComparedKernel(**(fields | known))


def confirmed(change: float, processes: int = 5) -> Confirmation:
    return Confirmation(outcome=ConfirmationOutcome.CONFIRMED, estimates=(change,) * processes, agreeing=processes)


def test_a_confirmed_regression_stands_among_many_that_show_nothing() -> None:
    many = [compared(kernel=f"scale/k{number}@1", finding=finding(1.0, number)) for number in range(100)]
    (found, *others) = judge_revisions([compared(finding=finding(1.02), confirmation=confirmed(1.02)), *many], [])
    assert found.verdict.kind is VerdictKind.REGRESSION
    assert found.adjusted_p is not None
    assert found.adjusted_p <= 0.05
    assert {one.verdict.kind for one in others} == {VerdictKind.PASS}


def test_a_finding_that_is_too_weak_for_so_many_comparisons_is_undecided() -> None:
    """One fresh process confirms with p = 1/2, which 2000 comparisons outweigh."""
    many = [compared(finding=finding(1.0, number)) for number in range(2000)]
    (found, *_) = judge_revisions([compared(finding=finding(1.02), confirmation=confirmed(1.02, processes=1)), *many], [])
    assert found.verdict.kind is VerdictKind.UNDECIDED
    assert "among 2001 comparisons it is not significant" in found.verdict.reason


def test_a_failure_comes_before_everything_else() -> None:
    (found,) = judge_revisions([compared(new_status=Status.WRONG, reason="off", changed_files=())], [])
    assert (found.verdict.kind, found.verdict.reason) == (VerdictKind.ERROR, "off")


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([VerdictKind.PASS, VerdictKind.IMPROVEMENT, VerdictKind.INCOMPARABLE], ExitCode.PASS),
        ([VerdictKind.PASS, VerdictKind.UNDECIDED], ExitCode.UNDECIDED),
        ([VerdictKind.REGRESSION, VerdictKind.UNDECIDED], ExitCode.REGRESSION),
        ([VerdictKind.REGRESSION, VerdictKind.ERROR], ExitCode.KERNEL_FAILED),
        ([VerdictKind.INCOMPARABLE], ExitCode.UNDECIDED),
        ([], ExitCode.UNDECIDED),
    ],
)
def test_the_exit_code_is_the_worst_that_applies_and_nothing_compared_is_no_pass(kinds: list[VerdictKind], code: ExitCode) -> None:
    assert ab_exit_code([compared(verdict=Verdict(kind=kind, reason="")) for kind in kinds]) == code


@pytest.mark.parametrize("kind", [VerdictKind.ERROR, VerdictKind.REGRESSION, VerdictKind.UNDECIDED])
def test_a_peer_does_not_change_the_exit_code(kind: VerdictKind) -> None:
    peer = compared(kernel="scale/peer@1", role=Role.PEER, verdict=Verdict(kind=kind, reason=""))
    ours = compared(verdict=Verdict(kind=VerdictKind.PASS, reason=""))
    assert ab_exit_code([ours, peer]) == ExitCode.PASS
    assert ab_exit_code([peer]) == ExitCode.UNDECIDED, "nothing of ours was compared"
