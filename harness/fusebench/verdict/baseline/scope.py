"""Baseline scope: the part of a baseline that a run is judged by.  A run that measured a selection is not judged by the rest.

The run's record holds its selection. A selected case or kernel that is not in the run was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ...errors import RunRecordError, UnknownNameError
from ...schema import Case, KernelId, Run
from ...stats.weighted import suite_summaries


def scoped_baseline(run: Run, baseline: Run) -> Run:
    """`baseline` reduced to the selected suites, op, cases and kernels of `run`."""
    part = _without_suites(baseline, _absent_suites(run, baseline))
    return _of_kernels(_of_cases(_of_shard(part, run), run), run)


def not_selected(baseline: Run, part: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The suites that `part` of `baseline` lacks, then the `suite:case` it lacks in the suites it holds, in the baseline's order."""
    cases = [summary.case for summary in baseline.cases]
    kept = {summary.case.key for summary in part.cases}
    suites = {summary.case.suite for summary in part.cases}
    return (
        tuple(dict.fromkeys(case.suite for case in cases if case.suite not in suites)),
        tuple(case.key for case in cases if case.suite in suites and case.key not in kept),
    )


def with_cases(run: Run, keys: Collection[str]) -> Run:
    """The record with these cases (`suite:case`) alone; the summaries of its suites stay as they are."""
    return msgspec.structs.replace(
        run,
        cases=[summary for summary in run.cases if summary.case.key in keys],
        results=[result for result in run.results if result.case_key in keys],
    )


def without_kernels(runs: Sequence[Run], patterns: Sequence[str]) -> list[Run]:
    """The runs without the kernels that `patterns` match (`KernelId.matches`): a gate would miss a kernel that the project has no more.

    Raises:
        UnknownNameError: a pattern matches no kernel of any run.
        RunRecordError: one matches a kernel that the speedups of others are relative to.
    """
    timed = {one.kernel for run in runs for one in run.results}
    gone: set[str] = set()
    for pattern in patterns:
        matched = {one for one in timed if KernelId.parse(one).matches(pattern)}
        if not matched:
            raise UnknownNameError("kernel of these runs", pattern, timed)
        gone |= matched
    needed = {one.baseline for run in runs for one in run.cases if one.baseline is not None}
    if kept := sorted(gone & needed):
        raise RunRecordError(f"speedups are relative to {', '.join(kept)}, which cannot be left out; name other kernels")
    return [_without_kernels(run, gone) for run in runs]


def _without_kernels(run: Run, gone: Collection[str]) -> Run:
    results = [one for one in run.results if one.kernel not in gone]
    kernels = [one for one in run.kernels if one.id not in gone]
    return msgspec.structs.replace(run, results=results, kernels=kernels, suites=suite_summaries(run.cases, results))


def _absent_suites(run: Run, baseline: Run) -> tuple[str, ...]:
    """Suites of `baseline` outside the selection of `run` and without a case in it, in the baseline's order.

    If both records selected the same suites, an absent suite was lost, not deselected; likewise if no suite is left. A record without a
    selection counts as having selected the suites that it holds.
    """
    present = {summary.case.suite for summary in run.cases}
    before = dict.fromkeys(summary.case.suite for summary in baseline.cases)
    if not present & before.keys() or (run.selected is not None and run.selected == baseline.selected):
        return ()
    return tuple(suite for suite in before if suite not in present and suite not in (run.selected or ()))


def _without_suites(baseline: Run, suites: Collection[str]) -> Run:
    return msgspec.structs.replace(
        baseline,
        suites=[summary for summary in baseline.suites if summary.name not in suites],
        cases=[summary for summary in baseline.cases if summary.case.suite not in suites],
        results=[result for result in baseline.results if result.suite not in suites],
    )


def _of_cases(baseline: Run, run: Run) -> Run:
    """`baseline` without the cases outside the selection of `run`, by op or by glob.

    Its suites stay, even empty ones: a case that is new to one of them belongs to no other suite.
    """
    op, glob = run.selected_op, run.selected_cases

    def asked_for(case: Case) -> bool:
        return (op is None or case.op in op.split(",")) and (glob is None or case.matches(glob))

    others = {summary.case.key for summary in baseline.cases if not asked_for(summary.case)}
    return msgspec.structs.replace(
        baseline,
        cases=[summary for summary in baseline.cases if summary.case.key not in others],
        results=[result for result in baseline.results if result.case_key not in others],
    )


def _of_shard(baseline: Run, run: Run) -> Run:
    """`baseline` with the cases of `run` alone where this is one shard: the other shards hold the rest."""
    if not run.shard:
        return baseline
    return with_cases(baseline, {summary.case.key for summary in run.cases})


def _of_kernels(baseline: Run, run: Run) -> Run:
    """`baseline` without the kernels outside the selection of `run`; all of it if both have the same selection.

    Kernels that the run holds count as selected: a run measures baselines beside the named kernels.
    """
    pattern = run.selected_kernels
    held = {result.kernel for result in run.results}
    # A tunable choice is measured where a table takes it, so a new table leaves another one out.
    results = [result for result in baseline.results if result.kernel in held or not KernelId.parse(result.kernel).choice]
    baseline = msgspec.structs.replace(baseline, results=results) if len(results) < len(baseline.results) else baseline
    if pattern is None or pattern == baseline.selected_kernels:
        return baseline
    kept = [result for result in baseline.results if result.kernel in held or KernelId.parse(result.kernel).matches(pattern)]
    return msgspec.structs.replace(baseline, results=kept)
