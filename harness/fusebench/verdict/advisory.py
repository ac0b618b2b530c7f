"""The remark on a verdict that has no say in the exit code: that it has none, and why."""

from __future__ import annotations

import msgspec

from ..schema import Role, Verdict, VerdictKind

_REASONS = {
    Role.PEER: "a peer is another library's to mend",
    Role.COMPILED: "torch.compile chooses its code anew in every process",
}
"""Kernels of the other roles always have a say."""


def explain_advisory(verdict: Verdict, role: Role) -> Verdict:
    """`verdict` on a kernel of `role`, with the remark at the end of its reason; as it is where it has a say or is a pass."""
    if verdict.decides or verdict.kind is VerdictKind.PASS:
        return verdict
    remark = f"no say in the exit code: {_REASONS[role]}"
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; {remark}" if verdict.reason else remark)
