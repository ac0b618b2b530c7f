"""From verdicts to the exit status: which verdicts gate, why the others are advisory, and the one mapping of verdicts to exit codes.

`run`, `gate`, `ab`, `static` and `history` all ask `exit_code_of`; `eval` has a status and no verdicts. They differ in which verdicts
they count, in which kinds count as a pass, and in what an empty result means; each passes these as arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..schema import ExitCode, Role, Verdict, VerdictKind, worst_exit_code
from ..schema.evaluation import EvaluationStatus
from .baseline.judgement import Judgement, Presence

if TYPE_CHECKING:  # a gate has no time to import static evidence
    from ..evidence.records import StaticReport
    from ..evidence.static_gate import StaticJudgement
    from .baseline.suite_changes import Shrinkage

_EXIT_CODES = {
    VerdictKind.PASS: ExitCode.PASS,
    VerdictKind.IMPROVEMENT: ExitCode.PASS,
    VerdictKind.REGRESSION: ExitCode.REGRESSION,
    VerdictKind.UNDECIDED: ExitCode.UNDECIDED,
    VerdictKind.INCOMPARABLE: ExitCode.UNDECIDED,
    VerdictKind.ERROR: ExitCode.KERNEL_FAILED,
}

_EVALUATION_CODES = {
    EvaluationStatus.PASSED: ExitCode.PASS,
    EvaluationStatus.UNSUPPORTED: ExitCode.USAGE,
    EvaluationStatus.INVALID: ExitCode.USAGE,
    EvaluationStatus.UNDECIDED: ExitCode.UNDECIDED,
    EvaluationStatus.UNFIT: ExitCode.DEVICE_UNFIT,
}
"""Every other status is a candidate that failed."""

_ADVISORY = "advisory: "
_WHY_ADVISORY = {
    Role.PEER: "only its own library can mend a peer",
    Role.COMPILED: "torch.compile chooses its code anew in every process",
}
"""Kernels of the other roles always gate."""


def exit_code_of(
    kinds: Iterable[VerdictKind],
    *,
    passing: Collection[VerdictKind] = (),
    if_none: ExitCode = ExitCode.PASS,
    others: Iterable[ExitCode] = (),
) -> ExitCode:
    """The exit code of a command's gating verdicts.

    Args:
        kinds: kinds of the gating verdicts; the caller leaves out advisory ones.
        passing: kinds that this command counts as a pass, such as `incomparable` under --allow-incomparable.
        if_none: the code without any verdict. A gate that compared nothing has not passed.
        others: codes for other reasons, such as a device that was not fit to measure.
    """
    codes = [ExitCode.PASS if kind in passing else _EXIT_CODES[kind] for kind in kinds]
    return worst_exit_code([*(codes or [if_none]), *others])


def evaluation_exit_code(status: EvaluationStatus) -> ExitCode:
    """The exit code of `eval`."""
    return _EVALUATION_CODES.get(status, ExitCode.KERNEL_FAILED)


def gate_exit_code(
    judgements: Sequence[Judgement],
    shrunken: Iterable[Shrinkage] = (),
    *,
    run_code: int = ExitCode.PASS,
    allow_incomparable: bool = False,
    dispatch_lost: bool = False,
) -> ExitCode:
    """The exit code of `gate`.

    Incomparable and missing results count as undecided unless allowed. So does a suite whose accuracy is no longer checked, because its
    kernels could be wrong by now. New results have no baseline and do not count, unless they failed. If no result counts, the gate is
    undecided.

    Args:
        judgements: final ones; advisory ones do not count.
        shrunken: suites that say less than in the baseline.
        run_code: the run's own exit code.  A run whose device was not fit to measure proves nothing.
        allow_incomparable: count `incomparable` as a pass.
        dispatch_lost: whether dispatch takes a slower kernel than in the baseline, which is a regression.
    """
    kinds = [
        one.verdict.kind
        for one in judgements
        if one.verdict.gating and (one.presence is not Presence.NEW or one.verdict.kind is VerdictKind.ERROR)
    ]
    others = [ExitCode.DEVICE_UNFIT] if run_code == ExitCode.DEVICE_UNFIT else []
    others += [ExitCode.REGRESSION] if dispatch_lost else []
    if any(suite.unchecked for suite in shrunken) and not allow_incomparable:
        others.append(ExitCode.UNDECIDED)
    passing = (VerdictKind.INCOMPARABLE,) if allow_incomparable else ()
    return exit_code_of(kinds, passing=passing, if_none=ExitCode.UNDECIDED, others=others)


def static_exit_code(
    judgements: Sequence[StaticJudgement],
    reports: Iterable[StaticReport] = (),
    *,
    allow_incomparable: bool = False,
    others: Iterable[ExitCode] = (),
) -> ExitCode:
    """The exit code of a static comparison: 1 for a regression, 5 for a kernel that failed, 4 for one that could not be judged, else 0.

    Args:
        judgements: of every kernel and case.
        reports: new evidence; a kernel that failed there counts even where it was not judged.
        allow_incomparable: count `incomparable` and `undecided` (missing) as a pass.
        others: codes for other reasons, such as a target without a baseline.
    """
    passing = (VerdictKind.INCOMPARABLE, VerdictKind.UNDECIDED) if allow_incomparable else ()
    failed = [ExitCode.KERNEL_FAILED for report in reports if report.failed]
    return exit_code_of((one.kind for one in judgements), passing=passing, others=[*failed, *others])


def is_aside(verdict: Verdict) -> bool:
    """Whether it is neither a pass nor counted in the exit status."""
    return not verdict.gating and verdict.kind is not VerdictKind.PASS


def explain_advisory(verdict: Verdict, role: Role) -> Verdict:
    """Explain, at the end of its reason, why an advisory verdict on a kernel of `role` does not affect the exit code.

    Gating verdicts and passes stay as they are.
    """
    if not is_aside(verdict):
        return verdict
    remark = f"{_ADVISORY}{_WHY_ADVISORY[role]}"
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; {remark}" if verdict.reason else remark)


def advisory_remark(verdict: Verdict) -> str:
    """What `explain_advisory` added to the reason of a verdict, without its first word; empty where it added nothing."""
    _, found, remark = verdict.reason.rpartition(_ADVISORY)
    return remark if found else ""
