"""FDR control: select the significant changes among all comparisons.

A gate over two hundred kernels and cases makes two hundred comparisons.  Each has its own 95 % interval; some fall beyond the margin by
chance. Benjamini and Hochberg's rule keeps the expected share of false findings at a rate. A change that is not significant after it is
undecided, and its reason says by how much it failed. `run` and `gate` control regressions of speed (`fdr_controlled`), `ab` and
`calibrate` both directions (`verdict.conclusion`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..schema import Measurement, Run, Verdict, VerdictKind
from ..stats.fdr import DEFAULT_RATE, select
from ..stats.scatter import DEGREES
from ..stats.student import p_slower_of
from .accuracy_change import less_accurate
from .baseline.judgement import Judgement, results_by_place
from .margins.call_classes import launches_of
from .margins.rule import MORE_REPLICATES, MarginRule
from .margins.support import units_of


def adjusted_p_values(p_values: Sequence[float], rate: float) -> tuple[float, ...]:
    """The adjusted p-values of one family of tests, in their order: the smallest rate at which each would be significant.

    Raises:
        ValueError: a p-value outside [0, 1], or a rate outside (0, 1).
    """
    return select(p_values, rate).adjusted


def unless_significant(verdict: Verdict, adjusted_p: float, *, comparisons: int, rate: float, remedy: str = "") -> Verdict:
    """`verdict` on a claimed change, undecided where `adjusted_p` is above `rate`.

    Args:
        comparisons: how many were tested together.
        remedy: advice for the reason.
    """
    if adjusted_p <= rate:
        return verdict
    why = f"among {comparisons} comparisons it is not significant (adjusted p {adjusted_p:.2g}, {rate:g} is allowed)"
    reason = f"{verdict.reason}; {why}{f': {remedy}' if remedy else ''}"
    return msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=reason)


def fdr_controlled(
    judgements: Sequence[Judgement],
    run: Run,
    baseline: Run,
    rule: MarginRule,
    *,
    rate: float = DEFAULT_RATE,
) -> list[Judgement]:
    """The judgements of `run` against `baseline`, in their order, with regressions of speed that are not significant turned undecided.

    Every gating comparison of times is tested.  Identical machine code is not, because its answer is known beforehand.  Advisory verdicts
    (on peers, and on the speed of torch.compile's code) are not either: each finding raises the level that the others are tested at, and a
    verdict that cannot raise an alarm must not make room for others.  An advisory verdict stands on its own interval; it gets a p-value and
    a margin, but no adjusted p-value.  A loss of accuracy is not a matter of chance and stays.

    Raises:
        ValueError: a rate outside (0, 1).
    """
    new, old = results_by_place(run), results_by_place(baseline)
    held = list(judgements)
    tested: list[int] = []
    p_values: list[float] = []
    for place, judgement in enumerate(judgements):
        key = (judgement.suite, judgement.case, judgement.kernel)
        if judgement.verdict.change is None or judgement.same_code or key not in new or key not in old:
            continue
        p_value, margin = _tested(judgement, new[key].measurement, old[key].measurement, rule)
        held[place] = msgspec.structs.replace(judgement, verdict=msgspec.structs.replace(judgement.verdict, p_value=p_value, margin=margin))
        if judgement.verdict.gating:
            tested.append(place)
            p_values.append(p_value)
    for place, adjusted_p in zip(tested, adjusted_p_values(p_values, rate), strict=True):
        judgement = held[place]
        key = (judgement.suite, judgement.case, judgement.kernel)
        verdict = msgspec.structs.replace(judgement.verdict, adjusted_p=adjusted_p)
        if verdict.kind is VerdictKind.REGRESSION and not less_accurate(new[key], old[key]):
            verdict = unless_significant(verdict, adjusted_p, comparisons=len(tested), rate=rate, remedy=MORE_REPLICATES)
        held[place] = msgspec.structs.replace(judgement, verdict=verdict)
    return held


def _tested(judgement: Judgement, new: Measurement | None, old: Measurement | None, rule: MarginRule) -> tuple[float, float | None]:
    """The p-value of the kernel being slower, and its margin; 1 and None if either run did not time it."""
    change = judgement.verdict.change
    if new is None or old is None or change is None:
        return 1.0, None
    margin = rule.margin_at(new.time_us.value, launches_of(new, old), judgement.reference)
    if judgement.reference is not None:
        # The margin is made of the same scatter, so equal code lies four to five scales below it.  What is left to chance is whether the
        # kernel is slower at all.
        return p_slower_of(change, 0.0, DEGREES), margin
    return p_slower_of(change, margin, min(units_of(new), units_of(old)) - 1), margin
