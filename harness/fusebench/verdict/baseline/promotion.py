"""Whether a run may replace the last promoted baseline of its device model: a refreshed baseline must not absorb a regression silently."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import RegressionError, RunRecordError
from ...schema import Run, VerdictKind
from ...stats.paired import describe_change
from ..accuracy_change import less_accurate
from ..margins.rule import MarginRule
from .compare_to_baseline import judge_run
from .joined import join_runs
from .judgement import Judgement, Presence, results_by_place
from .scope import not_selected, scoped_baseline

_NAMED = 8
"""Kernels that a refusal names; the others are counted."""


def added_to(stored: Run, runs: Sequence[Run]) -> Run:
    """The stored baseline with `runs` added (`join_runs`).

    The newest run decides which cases and kernels the baseline holds, so it must have measured all that the stored one selects.

    Raises:
        RunRecordError: the stored baseline is newer than the runs, has one of them already, or holds a part that the newest one left out.
    """
    joined = join_runs([stored, *runs])
    newest = next((run for run in runs if run.id == joined.id), None)
    if newest is None:
        raise RunRecordError(f"the stored baseline {stored.id} is newer than the runs to add; add a run made after {stored.created}")
    suites, cases = not_selected(stored, scoped_baseline(newest, stored))
    left_out = [*(f"suite {name}" for name in suites), *(f"case {key}" for key in cases)]
    if newest.selected_kernels not in (None, stored.selected_kernels):
        left_out.append(f"kernels other than {newest.selected_kernels}")
    if left_out:
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        raise RunRecordError(
            f"run {newest.id} measured a part, and the stored baseline {stored.id} would lose {', '.join(left_out[:_NAMED])}{more}; add "
            f"a run of the whole, or replace the baseline without --add"
        )
    return joined


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
