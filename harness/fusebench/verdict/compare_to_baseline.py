"""A whole run against a whole baseline: every judgement, held against the number of them and against the noise of identical code.

`run` and `gate` ask this one place, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..schema import AAPair, Run, VerdictKind
from .advisory import explain_advisory
from .baseline_scope import not_selected, selected_part
from .fdr_control import fdr_controlled, less_accurate, results_by_place
from .identical_code import Spread, against_noise, noise_by_class, noise_near, spread_of
from .judgement import Judgement, judge_run, launches_of
from .margin_rule import MarginRule
from .suite_changes import Shrinkage, Unexplained, shrinkage, unexplained_improvements


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What two records say together."""

    judgements: tuple[Judgement, ...]
    """Final, in the order of `judge_run`; what has no say in the exit code says so in its reason."""
    identical: tuple[Spread, ...]
    """What identical machine code showed, by class of duration; empty where neither or only one record says what code ran."""
    shrunken: tuple[Shrinkage, ...]
    unexplained: tuple[Unexplained, ...]
    not_selected: tuple[str, ...] = ()
    """Suites of the baseline that the run was not asked for: nothing is said of them."""
    not_selected_cases: tuple[str, ...] = ()
    """`suite:case` of the baseline's other suites that the run was not asked for."""


def judge_whole(run: Run, baseline: Run, rule: MarginRule) -> Judged:
    """Judge `run` by what it was asked for of `baseline`.

    A regression or improvement stands when its whole interval is beyond the margin, it is a finding among all comparisons of changed
    code, and it is larger than what identical code of such calls showed between the same two records.
    """
    part = selected_part(run, baseline)
    suites, cases = not_selected(baseline, part)
    judgements = fdr_controlled(judge_run(run, part, rule), run, part, rule)
    twins = aa_pairs_of(judgements, run)
    judgements = above_noise_floor(judgements, twins, run, part)
    judgements = [msgspec.structs.replace(one, verdict=explain_advisory(one.verdict, one.role)) for one in judgements]
    return Judged(
        judgements=tuple(judgements),
        identical=tuple(spread_of(twins)),
        shrunken=tuple(shrinkage(run, part)),
        unexplained=tuple(unexplained_improvements(judgements, run, part)),
        not_selected=suites,
        not_selected_cases=cases,
    )


def identical_line(judged: Judged) -> str:
    """What identical machine code showed, in one line."""
    if not judged.identical:
        known = any(one.same_code is False for one in judged.judgements)
        missing = "no kernel's machine code is the baseline's" if known else "what machine code ran is not in both records"
        return f"identical machine code: {missing}, so its noise is not known"
    return f"identical machine code differed by up to {', '.join(map(str, judged.identical))}"


def aa_pairs_of(judgements: Iterable[Judgement], run: Run) -> list[AAPair]:
    """The comparisons of identical code, in their order, with the durations of `run`."""
    results = results_by_place(run)
    found = []
    for one in judgements:
        if one.alone is None or one.verdict.change is None:
            continue
        timing = results[one.suite, one.case, one.kernel].measurement
        assert timing is not None, "what has a change was timed"
        twin = AAPair(
            case=f"{one.suite}:{one.case}",
            kernel=one.kernel,
            time_us=timing.time_us.value,
            change=one.verdict.change,
            kind=one.alone,
            launches=timing.kernels,
        )
        found.append(twin)
    return found


def above_noise_floor(judgements: Iterable[Judgement], twins: Sequence[AAPair], run: Run, baseline: Run) -> list[Judgement]:
    """The judgements, in their order, with findings of speed no larger than those of identical code turned undecided.

    A loss of accuracy is no matter of noise and stays.
    """
    noise = noise_by_class(twins)
    new, old = results_by_place(run), results_by_place(baseline)
    held = []
    for one in judgements:
        key = (one.suite, one.case, one.kernel)
        claimed = one.verdict.kind in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT) and one.verdict.change is not None
        if not claimed or less_accurate(new[key], old[key]):
            held.append(one)
            continue
        now, then = new[key].measurement, old[key].measurement
        assert now is not None, "what has a change was timed"
        assert then is not None, "what has a change was timed"
        near = noise_near(noise, now.time_us.value, launches_of(now, then))
        held.append(msgspec.structs.replace(one, verdict=against_noise(one.verdict, near)))
    return held
