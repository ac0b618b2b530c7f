"""Whether a run may replace the last promoted baseline of its device model: a refreshed baseline must not absorb a regression silently."""

from __future__ import annotations

from ...errors import RegressionError
from ...schema import Run, VerdictKind
from ...stats.paired import describe_change
from ..accuracy_change import less_accurate
from ..margins.rule import MarginRule
from .compare_to_baseline import judge_run
from .judgement import Judgement, Presence, results_by_place

_NAMED = 8
"""Kernels that a refusal names; the others are counted."""


def absorbed_changes(run: Run, last: Run | None, rule: MarginRule) -> list[str]:
    """What later gates would no longer see if `run` replaced `last`, one sentence each; empty without a last baseline.

    A gating kernel counts if it regressed, or if its estimated time is beyond the margin although the interval is not: an undecided
    slowdown would be absorbed too. So would a growth of the error that identical code leaves undecided. If not one kernel can be compared
    (another timer, another schema), that is a sentence of its own.
    """
    if last is None:
        return []
    common = [one for one in judge_run(run, last, rule).judgements if one.presence is Presence.COMMON and one.verdict.gating]
    if common and all(one.verdict.kind is VerdictKind.INCOMPARABLE for one in common):
        return [f"no kernel can be compared with the baseline {last.id}: {common[0].verdict.reason}"]
    new, old = results_by_place(run), results_by_place(last)
    found = []
    for one in common:
        place = (one.suite, one.case, one.kernel)
        lost = less_accurate(new[place], old[place]) and one.verdict.kind is VerdictKind.UNDECIDED
        if lost or one.verdict.kind is VerdictKind.REGRESSION or _beyond_margin(one):
            found.append(_sentence(one, by_reason=lost))
    return found


def require_reason(run: Run, last: Run | None, rule: MarginRule, reason: str) -> list[str]:
    """`absorbed_changes`, refused without a reason.

    Raises:
        RegressionError: there are any, and `reason` is empty.
    """
    found = absorbed_changes(run, last, rule)
    if found and not reason.strip():
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise RegressionError(
            f"run {run.id} would replace the baseline {last.id if last is not None else ''} and hide {len(found)} of its regressions: "
            f"{'; '.join(found[:_NAMED])}{more}. Mend them, or say why they are accepted: --reason TEXT"
        )
    return found


def _beyond_margin(one: Judgement) -> bool:
    verdict = one.verdict
    if verdict.kind is VerdictKind.PASS or verdict.change is None or verdict.margin is None:
        return False
    return verdict.change.value > 1.0 + verdict.margin


def _sentence(one: Judgement, *, by_reason: bool) -> str:
    change = f" {describe_change(one.verdict.change)}" if one.verdict.change is not None and not by_reason else ""
    kind = "" if one.verdict.kind is VerdictKind.REGRESSION else f" ({one.verdict.kind})"
    return f"{one.kernel} on {one.suite}:{one.case}{change or ': ' + one.verdict.reason}{kind}"
