"""Cases whose verdict against the stored baseline is in doubt: they are measured again, in fresh processes, before it is given.

What a process does to a kernel it does for its life: on an H200 one of them ran two kernels 4 % slower in all of its placements, of
identical code.  A run measures each case in one process, so that its intervals do not know of this.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec

from ..schema import Run, Status, VerdictKind
from ..stats.describe import describe_change
from ..store.baselines import load_baseline
from .compare_to_baseline import judge_whole
from .fdr_control import less_accurate, results_by_place
from .margin_rule import MarginRule

_ORDER = (VerdictKind.REGRESSION, VerdictKind.UNDECIDED, VerdictKind.IMPROVEMENT)


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """One case, and what is in doubt of it."""

    case: str
    """Key of the case that was measured; that of one which takes its results only where the measured one is not in the run."""
    reason: str
    """What its kernels would be called, in words."""


def suspects(run: Run, baseline: Run, rule: MarginRule) -> list[Suspect]:
    """Cases of which a kernel with a say would be called slower by its times, or undecided, or faster without a known cause; in this order.

    Cases that were measured in several processes are not among them, nor those whose baseline kernel has failed since, with which they
    would be paired, nor are losses of accuracy, which are no matter of the process.
    """
    found = judge_whole(run, baseline, rule)
    new, old = results_by_place(run), results_by_place(baseline)
    summaries = {summary.case.key: summary for summary in run.cases}
    unexplained = {(one.suite, one.case, one.kernel) for one in found.unexplained}
    claims: dict[str, dict[str, int]] = defaultdict(dict)  # by case, what is said of its kernels, and how urgent that is
    for one in found.judgements:
        place = (one.suite, one.case, one.kernel)
        if one.verdict.change is None or not one.verdict.decides or less_accurate(new[place], old[place]):
            continue
        timing, summary = new[place].measurement, summaries[f"{one.suite}:{one.case}"]
        claimed = one.verdict.kind in (VerdictKind.REGRESSION, VerdictKind.UNDECIDED) or place in unexplained
        if not claimed or timing is None or timing.processes > 1:
            continue
        paired_with = new.get((one.suite, one.case, summary.baseline or ""))
        if paired_with is None or paired_with.status is not Status.MEASURED:
            continue  # a run that is gone on with may hold such a case: it failed in the second look of the one that was stopped
        # A run that is gone on with for a part of its cases may lack the one whose results were taken.
        case = summary.same_as if summary.same_as in summaries else summary.case.key
        kind = one.verdict.kind if one.verdict.kind in _ORDER else VerdictKind.IMPROVEMENT
        claims[case][f"{one.kernel} {describe_change(one.verdict.change)} ({kind})"] = _ORDER.index(kind)
    return [Suspect(case=case, reason=", ".join(claims[case])) for case in sorted(claims, key=lambda case: min(claims[case].values()))]


def suspects_against_baseline(run: Run, results_folder: Path, rule: MarginRule) -> list[Suspect]:
    """`suspects` against the stored baseline of the run's device model; none where there is no baseline.

    Raises:
        RunRecordError: the stored baseline cannot be read.
    """
    baseline = load_baseline(results_folder, run.environment.device_name)
    return suspects(run, baseline, rule) if baseline is not None else []
