from __future__ import annotations

import pytest

from fusebench.schema import Role, Verdict, VerdictKind
from fusebench.verdict.exit_status import explain_advisory


@pytest.mark.parametrize(
    ("role", "why"),
    [(Role.COMPILED, "torch.compile chooses its code anew in every process"), (Role.PEER, "only its own library can mend a peer")],
)
def test_the_remark_ends_the_reason_and_says_why(role: Role, why: str) -> None:
    verdict = Verdict(kind=VerdictKind.REGRESSION, reason="5 % slower", gating=False)
    assert explain_advisory(verdict, role).reason == f"5 % slower; advisory: {why}"
    bare = Verdict(kind=VerdictKind.ERROR, reason="", gating=False)
    assert explain_advisory(bare, role).reason == f"advisory: {why}"


def test_what_has_a_say_and_what_passed_stay_as_they_are() -> None:
    for verdict in (
        Verdict(kind=VerdictKind.REGRESSION, reason="less accurate"),
        Verdict(kind=VerdictKind.PASS, reason="+0.1 %", gating=False),
    ):
        assert explain_advisory(verdict, Role.COMPILED) == verdict
