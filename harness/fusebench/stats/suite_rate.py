"""A gate's regressions of speed held to a false-discovery rate over everything that was compared.

A gate over two hundred kernels and cases makes two hundred comparisons.  Each has its own 95 % interval; those that fall beyond the margin
by luck are found among so many.  What does not stand after Benjamini and Hochberg is undecided, and says by how much it failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..schema import Result, Run, VerdictKind
from .accuracy_change import accuracy_loss
from .fdr import DEFAULT_RATE, Dependence, p_slower_of, select
from .gating import Judgement
from .rule import MarginRule


def held_to_rate(
    judgements: Sequence[Judgement],
    run: Run,
    baseline: Run,
    rule: MarginRule,
    *,
    rate: float = DEFAULT_RATE,
    dependence: Dependence = Dependence.POSITIVE,
) -> list[Judgement]:
    """The judgements of `run` against `baseline`, in their order, with the regressions of speed that do not stand turned undecided.

    Every comparison of times counts among those tested, and its verdict gets its p-values and its margin; identical machine code, whose
    answer is known beforehand, does not.  A loss of accuracy is no matter of chance and stays.

    Raises:
        ValueError: a rate outside (0, 1).
    """
    new, old = results_by_place(run), results_by_place(baseline)
    tested: list[int] = []
    p_values: list[float] = []
    for place, judgement in enumerate(judgements):
        key = (judgement.suite, judgement.case, judgement.kernel)
        if judgement.verdict.change is not None and not judgement.same_code and key in new and key in old:
            tested.append(place)
            p_values.append(_p_slower(judgement, new[key], old[key], rule))
    chosen = select(p_values, rate, dependence)
    held = list(judgements)
    for place, p_value, adjusted, stands in zip(tested, p_values, chosen.adjusted, chosen.stands, strict=True):
        judgement = judgements[place]
        key = (judgement.suite, judgement.case, judgement.kernel)
        timing = new[key].measurement
        margin = rule.margin_at(timing.time_us.value) if timing is not None else None
        verdict = msgspec.structs.replace(judgement.verdict, p_value=p_value, adjusted_p=adjusted, margin=margin)
        if verdict.kind is VerdictKind.REGRESSION and not stands and not less_accurate(new[key], old[key]):
            limits = f"adjusted p {adjusted:.2g}, {rate:g} is allowed"
            why = f"among {len(tested)} comparisons it is no finding ({limits}): measure with more replicates"
            verdict = msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=f"{verdict.reason}; {why}")
        held[place] = msgspec.structs.replace(judgement, verdict=verdict)
    return held


def _p_slower(judgement: Judgement, new: Result, old: Result, rule: MarginRule) -> float:
    change = judgement.verdict.change
    assert change is not None
    if new.measurement is None or old.measurement is None:
        return 1.0
    degrees = min(new.measurement.replicates, old.measurement.replicates) - 1
    return p_slower_of(change, rule.margin_at(new.measurement.time_us.value), degrees)


def less_accurate(new: Result, old: Result) -> bool:
    """Whether a regression stands on accuracy, whatever the times say."""
    return new.accuracy is not None and old.accuracy is not None and accuracy_loss(new.accuracy, old.accuracy) != ""


def results_by_place(run: Run) -> dict[tuple[str, str, str], Result]:
    """The run's results by suite, case and kernel."""
    return {(result.suite, result.case, result.kernel): result for result in run.results}
