"""A gate's regressions of speed held to a false-discovery rate over everything that was compared.

A gate over two hundred kernels and cases makes two hundred comparisons.  Each has its own 95 % interval; those that fall beyond the margin
by luck are found among so many.  What does not stand after Benjamini and Hochberg is undecided, and says by how much it failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..schema import Estimate, Measurement, Result, Run, VerdictKind
from ..stats.fdr import DEFAULT_RATE, Dependence, p_slower_of, select
from .accuracy_change import accuracy_loss
from .judgement import Judgement, launches_of
from .margin_rule import MarginRule


def fdr_controlled(
    judgements: Sequence[Judgement],
    run: Run,
    baseline: Run,
    rule: MarginRule,
    *,
    rate: float = DEFAULT_RATE,
    dependence: Dependence = Dependence.POSITIVE,
) -> list[Judgement]:
    """The judgements of `run` against `baseline`, in their order, with the regressions of speed that do not stand turned undecided.

    Every comparison of times that has a say counts among those tested; identical machine code, whose answer is known beforehand, does not.
    Nor does what has no say (peers, the speed of torch.compile's code): each finding raises the level that the others are tested at, and
    what cannot raise an alarm must not make room for others'.  Its verdict stands on its own interval, and gets its p-value and its margin
    as those tested do, but no adjusted one.  A loss of accuracy is no matter of chance and stays.

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
        p_value, margin = _tested(judgement.verdict.change, new[key].measurement, old[key].measurement, rule)
        held[place] = msgspec.structs.replace(judgement, verdict=msgspec.structs.replace(judgement.verdict, p_value=p_value, margin=margin))
        if judgement.verdict.gating:
            tested.append(place)
            p_values.append(p_value)
    chosen = select(p_values, rate, dependence)
    for place, adjusted, stands in zip(tested, chosen.adjusted, chosen.stands, strict=True):
        judgement = held[place]
        key = (judgement.suite, judgement.case, judgement.kernel)
        verdict = msgspec.structs.replace(judgement.verdict, adjusted_p=adjusted)
        if verdict.kind is VerdictKind.REGRESSION and not stands and not less_accurate(new[key], old[key]):
            limits = f"adjusted p {adjusted:.2g}, {rate:g} is allowed"
            why = f"among {len(tested)} comparisons it is no finding ({limits}): measure with more replicates"
            verdict = msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=f"{verdict.reason}; {why}")
        held[place] = msgspec.structs.replace(judgement, verdict=verdict)
    return held


def _tested(change: Estimate, new: Measurement | None, old: Measurement | None, rule: MarginRule) -> tuple[float, float | None]:
    """The p-value of the kernel being slower, and the margin in force for it; 1 and None where either side was not timed."""
    if new is None or old is None:
        return 1.0, None
    margin = rule.margin_at(new.time_us.value, launches_of(new, old))
    return p_slower_of(change, margin, min(_units(new), _units(old)) - 1), margin


def _units(timing: Measurement) -> int:
    """What the interval is over: processes where there are several, else replicates (`stats.paired`)."""
    return timing.processes if timing.processes > 1 else timing.replicates


def less_accurate(new: Result, old: Result) -> bool:
    """Whether a regression stands on accuracy, whatever the times say."""
    return new.accuracy is not None and old.accuracy is not None and accuracy_loss(new.accuracy, old.accuracy) != ""


def results_by_place(run: Run) -> dict[tuple[str, str, str], Result]:
    """The run's results by suite, case and kernel."""
    return {(result.suite, result.case, result.kernel): result for result in run.results}
