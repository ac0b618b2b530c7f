"""A whole run against its baseline: every judgement, FDR control, the noise floor, suspects, remarks and the exit code.

`run` and `gate` both call `judge_run`, so they agree.  Load the baseline once (`load_valid_baseline`), judge once, and pass the
`RunJudgement` on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ...schema import FAILED_STATUSES, ExitCode, Result, Run, Status, Verdict, VerdictKind
from ...stats.paired import describe_change
from ..accuracy_change import less_accurate
from ..dispatch_choice import DispatchLoss, dispatch_losses
from ..exit_status import exit_code_of, explain_advisory
from ..fdr_control import fdr_controlled
from ..margins.call_classes import launches_of
from ..margins.rule import MarginRule
from ..noise_floor import Spread, aa_pairs_of, above_noise_floor, noise_line, spread_of, widening_by_class
from .judgement import Judgement, judge_each, results_by_place
from .scope import not_selected, scoped_baseline
from .suite_changes import Shrinkage, Unexplained, shrinkage, unexplained_improvements

_URGENCY = (VerdictKind.REGRESSION, VerdictKind.UNDECIDED, VerdictKind.IMPROVEMENT)
"""Kinds of suspects, the most urgent first."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A case to remeasure in fresh processes before its verdict is given.

    A process can make a kernel slower for its whole life: on an H200 one process ran two kernels 4 % slower in all of its placements, with
    identical code.  And few placements leave a time uncertain.
    """

    case: str
    """Key of the case that was measured.  Key of a case that takes its results only where the measured one is not in the run."""
    reason: str
    """Its kernels, their changes and the verdicts they would get."""
    kernels: tuple[str, ...] = ()
    """The kernels that make it a suspect."""


class RunJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement on one run, against its baseline if there is one."""

    judgements: tuple[Judgement, ...] = ()
    """Final, in the order of `judge_each`.  Reasons of advisory ones say why they are advisory.  Empty without a baseline."""
    verdicts: tuple[Verdict | None, ...]
    """One per result of the run, in its order; None for a result that has none, such as a kernel that covers a part of its op."""
    suspects: tuple[Suspect, ...] = ()
    """Cases whose gating kernels look slower, undecided or unexplainedly faster, in that order."""
    remarks: tuple[str, ...] = ()
    """Warnings for the run's record: suites that shrank, unexplained improvements, noise of identical code beyond the margin."""
    aa_spreads: tuple[Spread, ...] = ()
    """The noise floor from A/A pairs (identical machine code), by class of calls; empty if a record lacks the digests of its code."""
    shrunken: tuple[Shrinkage, ...] = ()
    unexplained: tuple[Unexplained, ...] = ()
    dispatch_losses: tuple[DispatchLoss, ...] = ()
    """Cases on which dispatch takes a slower kernel than in the baseline: each is a regression."""
    not_selected: tuple[str, ...] = ()
    """Suites of the baseline outside the run's selection; they are not judged."""
    not_selected_cases: tuple[str, ...] = ()
    """`suite:case` of the baseline's other suites outside the run's selection."""
    exit_code: ExitCode
    """What `run` returns: by the verdicts on its own results.  `exit_status.gate_exit_code` also counts results that cannot be compared or
    are missing."""


def judge_run(run: Run, baseline: Run | None, rule: MarginRule) -> RunJudgement:
    """Judge every result of `run` against `baseline`, restricted to the suites, op, cases and kernels of the run's selection.

    A regression or improvement stands when its whole interval is beyond the margin, when it is a finding among all comparisons of changed
    code (FDR control; regressions alone), and when it is larger than the noise floor, which identical code of such calls showed between
    the same two records.  Without a baseline nothing can have regressed and nothing passes: times are `incomparable`.

    Args:
        run: measured, with an exit code for what happened while measuring.
        baseline: valid (`load_valid_baseline`); None if none is stored.
        rule: the margins.

    Raises:
        ValueError: a figure in a record that no measurement gives; `require_valid` finds it beforehand.
    """
    if baseline is None:
        verdicts = _verdicts(run, {})
        return RunJudgement(verdicts=verdicts, exit_code=_run_exit_code(run, verdicts))
    part = scoped_baseline(run, baseline)
    suites, cases = not_selected(baseline, part)
    judgements = judge_each(run, part, rule)
    if widening := widening_by_class(judgements, run):
        rule = rule.widened(widening)
        judgements = judge_each(run, part, rule)
    judgements = fdr_controlled(judgements, run, part, rule)
    aa_pairs = aa_pairs_of(judgements, run)
    judgements = above_noise_floor(judgements, aa_pairs, run, part)
    judgements = [msgspec.structs.replace(one, verdict=explain_advisory(one.verdict, one.role)) for one in judgements]
    unexplained = unexplained_improvements(judgements, run, part)
    losses = dispatch_losses(run, part)
    shrunken, spreads = shrinkage(run, part), spread_of(aa_pairs, widening)
    verdicts = _verdicts(run, {(f"{one.suite}:{one.case}", one.kernel): one.verdict for one in judgements})
    return RunJudgement(
        judgements=tuple(judgements),
        verdicts=verdicts,
        suspects=tuple(_suspects(judgements, unexplained, run, part, rule)),
        remarks=(*_remarks(run, shrunken, unexplained, spreads), *map(str, losses)),
        aa_spreads=tuple(spreads),
        shrunken=tuple(shrunken),
        unexplained=tuple(unexplained),
        dispatch_losses=tuple(losses),
        not_selected=suites,
        not_selected_cases=cases,
        exit_code=_run_exit_code(run, verdicts, losses),
    )


def with_verdicts(run: Run, judged: RunJudgement) -> Run:
    """`run` with the verdict of every result, its exit code, and the remarks among its warnings."""
    results = [msgspec.structs.replace(result, verdict=verdict) for result, verdict in zip(run.results, judged.verdicts, strict=True)]
    return msgspec.structs.replace(run, results=results, exit_code=judged.exit_code, warnings=[*run.warnings, *judged.remarks])


def _suspects(
    judgements: Iterable[Judgement], unexplained: Iterable[Unexplained], run: Run, baseline: Run, rule: MarginRule
) -> list[Suspect]:
    """Cases whose gating kernels look slower, undecided or unexplainedly faster, in that order.

    A digest does not speak for a kernel whose times differ: identical code that its times alone leave undecided, beyond the noise between
    runs and beyond the margin, is a suspect too.  Left out are cases whose baseline kernel has failed since, because nothing could be
    paired with it, and losses of accuracy, which no other process changes.
    """
    new, old = results_by_place(run), results_by_place(baseline)
    summaries = {summary.case.key: summary for summary in run.cases}
    faster = {(one.suite, one.case, one.kernel) for one in unexplained}
    claims: dict[str, dict[str, int]] = defaultdict(dict)  # by case, what its kernels would be called, and how urgent that is
    kernels: dict[str, list[str]] = defaultdict(list)
    for one in judgements:
        place = (one.suite, one.case, one.kernel)
        doubted = one.verdict.kind in (VerdictKind.REGRESSION, VerdictKind.UNDECIDED) or place in faster
        claimed = doubted or _differs_in_time(one, new.get(place), old.get(place), rule)
        if not claimed or one.verdict.change is None or not one.verdict.gating or less_accurate(new[place], old[place]):
            continue
        timing, summary = new[place].measurement, summaries[f"{one.suite}:{one.case}"]
        if timing is None:
            continue
        paired_with = new.get((one.suite, one.case, summary.baseline or ""))
        if paired_with is None or paired_with.status is not Status.MEASURED:
            continue  # a resumed run may hold such a case: its baseline kernel failed while the stopped run remeasured it
        # A run resumed for a part of its cases may lack the case whose results were taken.
        case = summary.same_as if summary.same_as in summaries else summary.case.key
        kind = one.verdict.kind if one.verdict.kind in _URGENCY else VerdictKind.IMPROVEMENT
        called = "identical code" if one.verdict.kind is VerdictKind.PASS else kind
        claims[case][f"{one.kernel} {describe_change(one.verdict.change)} ({called})"] = _URGENCY.index(kind)
        kernels[case].append(one.kernel)
    ordered = sorted(claims, key=lambda case: min(claims[case].values()))
    return [Suspect(case=case, reason=", ".join(claims[case]), kernels=tuple(dict.fromkeys(kernels[case]))) for case in ordered]


def _differs_in_time(one: Judgement, new: Result | None, old: Result | None, rule: MarginRule) -> bool:
    """Whether identical code passes by its digest alone: its times leave it undecided, and differ beyond the noise between runs.

    Their change lies beyond the margin.  Within it a twentieth of all unchanged kernels differ beyond noise, by its definition: on a
    nightly of 1158 comparisons these were most of 41 cases, whose further looks took a quarter of the run.
    """
    change = one.verdict.change
    if change is None or one.reference is None or one.kind_by_times is not VerdictKind.UNDECIDED:
        return False
    if new is None or new.measurement is None or old is None or old.measurement is None:
        return False
    margin = rule.margin_at(new.measurement.time_us.value, launches_of(new.measurement, old.measurement), one.reference)
    return not change.low <= 1.0 <= change.high and not 1.0 / (1.0 + margin) <= change.value <= 1.0 + margin


def _remarks(run: Run, shrunken: Iterable[Shrinkage], unexplained: Iterable[Unexplained], spreads: Sequence[Spread]) -> list[str]:
    suites = {summary.case.suite for summary in run.cases}
    remarks = [str(suite) for suite in shrunken if suite.suite in suites]
    remarks += map(str, unexplained)
    if any(spread.beyond for spread in spreads):
        remarks.append(noise_line(spreads, ()))
    return remarks


def _verdicts(run: Run, known: Mapping[tuple[str, str], Verdict]) -> tuple[Verdict | None, ...]:
    """One verdict or None per result, in their order; `known`: verdicts of the comparison, by case key and kernel."""
    unjudged = Verdict(
        kind=VerdictKind.INCOMPARABLE,
        reason=f"no baseline is stored for {run.environment.device_name}; keep a run as one with `fusebench baseline promote`",
    )
    return tuple(_verdict(result, known, unjudged) for result in run.results)


def _run_exit_code(run: Run, verdicts: Iterable[Verdict | None], losses: Sequence[DispatchLoss] = ()) -> ExitCode:
    both = zip(run.results, verdicts, strict=True)
    kinds = [verdict.kind for result, verdict in both if verdict is not None and result.role_gates and verdict.gating]
    others = [ExitCode(run.exit_code), *(ExitCode.REGRESSION for _ in losses[:1])]
    return exit_code_of(kinds, passing=(VerdictKind.INCOMPARABLE,), others=others)


def _verdict(result: Result, known: Mapping[tuple[str, str], Verdict], unjudged: Verdict) -> Verdict | None:
    if result.status in FAILED_STATUSES:
        return explain_advisory(Verdict(kind=VerdictKind.ERROR, reason=result.reason, gating=result.role_gates), result.role)
    if result.status is Status.NOT_MEASURED:
        return explain_advisory(Verdict(kind=VerdictKind.UNDECIDED, reason=result.reason, gating=result.role_gates), result.role)
    if result.covers:
        return None  # its time is a part's, and there is nothing that it could be judged by
    verdict = known.get((result.case_key, result.kernel))
    if result.status is Status.CHECKED:
        return verdict  # of its accuracy alone, where the baseline has one
    return (verdict or unjudged) if result.status is Status.MEASURED else None
