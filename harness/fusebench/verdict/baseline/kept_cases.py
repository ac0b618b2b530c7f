"""Cases that a baseline keeps although its newest run did not measure them: they have the times, and the code, of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ...schema import JoinedRun, Result, Run
from ...stats.weighted import suite_summaries
from .scope import with_cases


def kept_cases(run: Run) -> dict[str, JoinedRun]:
    """For each case that the newest run of a joined record did not measure, by `suite:case`, the newest one that did."""
    newest: dict[str, int] = {}
    for one in run.results:
        if run.joined and one.measurement is not None:
            newest[one.case_key] = max((newest.get(one.case_key, 0), *one.measurement.runs))
    return {key: run.joined[place] for key, place in newest.items() if place < len(run.joined) - 1}


def measured_parts(run: Run) -> list[Run]:
    """The record as one for each of the runs that measured its cases last, the newest first: each names its run, and that run's commit.

    A record without kept cases is itself.
    """
    kept = kept_cases(run)
    if not kept:
        return [run]
    parts = [with_cases(run, {summary.case.key for summary in run.cases} - kept.keys())]
    for one in sorted(set(kept.values()), key=lambda one: one.created, reverse=True):
        part = with_cases(run, {key for key, by in kept.items() if by == one})
        environment = msgspec.structs.replace(run.environment, git_commit=one.git_commit)
        parts.append(msgspec.structs.replace(part, id=one.id, created=one.created, environment=environment))
    return parts


def with_cases_of(joined: Run, rest: Run, places: Sequence[int]) -> Run:
    """The record `joined` with the cases of `rest`, one of the records that it was joined from, as they are there.

    Args:
        rest: of cases that `joined` lacks.
        places: in the runs of `joined`, the runs of `rest` in their order; of a measured run its own.
    """
    known = {one.id for one in joined.kernels}
    timed = {one.kernel for one in rest.results}
    cases = [*joined.cases, *rest.cases]
    added = {summary.case.key for summary in rest.cases}  # of such a case a run that was stopped may hold what it knew without measuring
    own = dict(enumerate(places))
    results = [one for one in joined.results if one.case_key not in added]
    results += [msgspec.structs.replace(renumbered(one, own), verdict=None, attachments=()) for one in rest.results]
    named = ", ".join(summary.case.key for summary in rest.cases[:4])
    more = f" and {len(rest.cases) - 4} more" if len(rest.cases) > 4 else ""
    told = f"run {joined.id} did not measure {named}{more}: {len(rest.cases)} cases keep the times of earlier runs"
    return msgspec.structs.replace(
        joined,
        cases=cases,
        kernels=[*joined.kernels, *(one for one in rest.kernels if one.id in timed - known)],
        results=results,
        suites=suite_summaries(cases, results),
        selected=rest.selected,
        selected_op=rest.selected_op,
        selected_cases=rest.selected_cases,
        shard=rest.shard,
        warnings=[*joined.warnings, told],
    )


def renumbered(result: Result, places: Mapping[int, int]) -> Result:
    """The result, whose places among the runs become others; a measured run's own is the first."""
    timing = result.measurement
    if timing is None:
        return result
    timing = msgspec.structs.replace(timing, runs=tuple(places[place] for place in timing.runs or (0,)))
    return msgspec.structs.replace(result, measurement=timing)
