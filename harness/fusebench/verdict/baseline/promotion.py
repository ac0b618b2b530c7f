"""Whether a run may replace the last promoted baseline of its device model: a refreshed baseline must not absorb a regression silently."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import RegressionError, RunRecordError
from ...schema import Run, VerdictKind
from ...stats.paired import describe_change
from ..accuracy_change import accuracy_loss
from ..margins.rule import MarginRule
from ..record_validation import require_valid
from .compare_to_baseline import judge_run
from .joined import join_runs
from .judgement import Judgement, Presence, results_by_place
from .scope import not_selected, scoped_baseline, with_cases

_NAMED = 8
"""Sentences that a message holds; the others are counted."""


def added_to(stored: Run, runs: Sequence[Run]) -> Run:
    """The stored baseline with `runs` added (`join_runs`).

    The newest run decides which cases and kernels the baseline holds. Of what it did not ask for, or was stopped before, the baseline keeps
    what it has.

    Raises:
        RunRecordError: the stored baseline is newer than the runs, has one of them already, or holds kernels that the newest one left out.
    """
    *earlier, newest = sorted(runs, key=lambda run: run.created)
    if newest.created < stored.created:
        raise RunRecordError(f"the stored baseline {stored.id} is newer than the runs to add; add a run made after {stored.created}")
    if newest.selected_kernels not in (None, stored.selected_kernels):
        raise RunRecordError(
            f"run {newest.id} measured kernels that match {newest.selected_kernels}, and the stored baseline {stored.id} would lose the "
            f"others; add a run of all kernels, or replace the baseline without --add"
        )
    suites, cases = not_selected(stored, scoped_baseline(newest, stored))
    held = {summary.case.key for summary in newest.cases}
    left = {
        summary.case.key
        for summary in stored.cases
        if summary.case.key not in held and (not newest.complete or summary.case.suite in suites or summary.case.key in cases)
    }
    if left and earlier:  # of these cases, too, the baseline takes what the earlier runs measured
        return added_to(added_to(stored, earlier), [newest])
    joined = join_runs([stored, *runs], rest=with_cases(stored, left))
    require_valid(joined)
    return joined


def absorbed_changes(run: Run, last: Run | None, rule: MarginRule) -> list[str]:
    """What later gates would no longer see if `run` replaced `last`, one sentence each, regressions first; empty without a last
    baseline.

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
    for one in sorted(common, key=lambda one: one.verdict.kind is not VerdictKind.REGRESSION):
        place = (one.suite, one.case, one.kernel)
        now, then = new[place].accuracy, old[place].accuracy
        loss = accuracy_loss(now, then) if now is not None and then is not None else ""
        lost = loss and one.verdict.kind is VerdictKind.UNDECIDED
        if lost or one.verdict.kind is VerdictKind.REGRESSION or _beyond_margin(one):
            found.append(_sentence(one, loss))
    return found


def require_reason(run: Run, last: Run | None, rule: MarginRule, reason: str, *, adding: bool = False) -> list[str]:
    """`absorbed_changes`, refused without a reason; `adding` says that `run` would join `last` instead of replacing it.

    Raises:
        RegressionError: there are any, and `reason` is empty.
    """
    found = absorbed_changes(run, last, rule)
    if found and not reason.strip():
        named = first_of(found)
        each = f" {named[0]}. " if len(named) == 1 else "".join(f"\n  {one}" for one in named) + "\n"
        would = f"would {'join' if adding else 'replace'} the baseline {last.id if last is not None else ''}"
        raise RegressionError(
            f"run {run.id} {would} and hide {len(found)} of its regressions:{each}Mend them, or say why they are accepted: --reason TEXT"
        )
    return found


def first_of(sentences: Sequence[str], most: int = _NAMED) -> list[str]:
    """The first sentences, or names, and how many more there are."""
    more = len(sentences) - most
    return [*sentences[:most], f"and {more} more"] if more > 0 else list(sentences)


def _beyond_margin(one: Judgement) -> bool:
    verdict = one.verdict
    if verdict.kind is VerdictKind.PASS or verdict.change is None or verdict.margin is None:
        return False
    return verdict.change.value > 1.0 + verdict.margin


def _sentence(one: Judgement, loss: str) -> str:
    """What is worse: the error (`loss`, in words) or the time, or both."""
    verdict = one.verdict
    change = f" {describe_change(verdict.change)}" if verdict.change is not None and (not loss or _beyond_margin(one)) else ""
    kind = "" if verdict.kind is VerdictKind.REGRESSION else f" ({verdict.kind}{', identical machine code' if one.same_code else ''})"
    told = f": {loss}" if loss else "" if change else f": {verdict.reason}"
    return f"{one.kernel} on {one.suite}:{one.case}{change}{told}{kind}"
