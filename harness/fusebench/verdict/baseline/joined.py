"""Several runs of the same work joined into one baseline: each time is the mean over the runs, on the logarithm.

One run stands on one process of one board, and a gate cannot tell either from the kernel.  In a joined baseline they average out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ...errors import RunRecordError
from ...schema import CaseSummary, Estimate, ExitCode, JoinedRun, Measurement, Result, Run, boards_of
from ...stats.paired import quotient
from ...stats.scatter import standard_error
from ...stats.student import quantile
from ...stats.weighted import suite_summaries
from ..comparability import record_differences
from ..dispatch_choice import LOSS_WORDS
from ..margins.support import is_disturbed, own_variance, units_of
from ..noise_floor import SPREAD_WORDS
from .kept_cases import renumbered, with_cases_of
from .older_run import OlderRun, runs_of
from .suite_changes import UNEXPLAINED_WORDS

FEWEST_PROCESSES = 8
"""A baseline of fewer processes has an objection: gates against it leave more kernels undecided.  Eight nightlies of one process each, or
one run of eight, are enough."""

JUDGED_WORDS = (SPREAD_WORDS, UNEXPLAINED_WORDS, LOSS_WORDS)
"""Warnings that begin so compare one run with the last baseline."""
REMEASURE = "remeasure"
"""In the warning of a run about suspects that it could not remeasure as often as they may be, and in older records of each suspect."""


def join_runs(runs: Sequence[Run], *, rest: Run | None = None) -> Run:
    """The newest of `runs`, with the times of all of them.

    Each run counts the same.  A time of another run is brought to the newest one's machine state as a gate does: by the drift of the
    streaming yardsticks and of the launch gaps.  A kernel on a case joins the runs that timed it with the newest run's code; the others are
    left out of that time.  So is a time that was disturbed (`margins.support.MOST_ERROR`), where another run has one that was not.

    A joined record may be among the older runs.  Each of its times counts as many times as runs are behind it, so that a baseline which
    grows run by run is that of all runs at once.  Of its runs, those behind no time any more are left out.

    Verdicts go, their evidence, and exit codes that came from them: they judged one run's times by the last baseline.  So do the warnings
    that came of it, and those of suspects; and a newest run that was stopped while these were remeasured lacks nothing here, if it has
    every case of the others.

    Cases stand in the order of the run that has most of them, so that a baseline which grows keeps its order.

    Args:
        rest: a part of one of the older runs (`with_cases`): cases that the newest run lacks, whose times are kept as they are.

    Raises:
        RunRecordError: no run, one run twice, a joined record as the newest run, or runs of different devices, timers or cache states.
    """
    ordered = _in_order(runs)
    newest = ordered[-1]
    if len(ordered) == 1:
        return newest
    if newest.joined:
        raise RunRecordError(
            f"the joined baseline {newest.id} is newer than the other runs; the newest run decides code and accuracy, and must be a "
            f"measured one: name a run made after {newest.created}"
        )
    for run in ordered:
        if different := record_differences(newest, run):
            raise RunRecordError(f"runs {run.id} and {newest.id} cannot be joined: {'; '.join(different)}; leave one of them out")
    # Python's sort keeps the order of equal times, so the newest run stays last.
    every = sorted(((one, number) for number, run in enumerate(ordered) for one in runs_of(run)), key=lambda run: run[0].created)
    joined = [one for one, _ in every]
    places = [[place for place, (_, number) in enumerate(every) if ordered[number] is run] for run in ordered]
    others = [OlderRun(run, newest, own) for run, own in zip(ordered[:-1], places[:-1], strict=True)]
    cases = [_summary(summary, others) for summary in newest.cases]
    results = [_result(result, others, joined) for result in newest.results]
    results = _over_quiet_baselines(results, cases, len(joined) - 1)
    record = msgspec.structs.replace(newest, joined=tuple(joined), cases=cases, results=results)
    if rest is not None and rest.cases:
        record = with_cases_of(record, rest, next(own for run, own in zip(ordered, places, strict=True) if run.id == rest.id))
    record = _ordered_as(max(reversed(ordered), key=lambda run: len(run.cases)), record)
    measured = {run.id for run in ordered if not run.joined}
    kept = {place for place, one in enumerate(joined) if one.id in measured}
    kept |= {place for one in record.results if one.measurement is not None for place in one.measurement.runs}
    places_now = {place: number for number, place in enumerate(sorted(kept))}
    return msgspec.structs.replace(
        record,
        joined=tuple(one for place, one in enumerate(joined) if place in kept),
        suites=suite_summaries(record.cases, record.results),
        results=record.results if len(kept) == len(joined) else [renumbered(one, places_now) for one in record.results],
        exit_code=newest.exit_code if newest.exit_code == ExitCode.KERNEL_FAILED else ExitCode.PASS,
        warnings=[one for one in record.warnings if not one.startswith(JUDGED_WORDS) and REMEASURE not in one],
        complete=newest.complete or _cases(record) >= {key for run in ordered[:-1] for key in _cases(run)},
    )


def _ordered_as(run: Run, record: Run) -> Run:
    """The record with its cases, and their results, in the order of `run`; those that it lacks stand last."""
    places = {summary.case.key: place for place, summary in enumerate(run.cases)}
    return msgspec.structs.replace(
        record,
        cases=sorted(record.cases, key=lambda summary: places.get(summary.case.key, len(places))),
        results=sorted(record.results, key=lambda result: places.get(result.case_key, len(places))),
    )


def _cases(run: Run) -> set[str]:
    return {summary.case.key for summary in run.cases}


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """The runs from the oldest to the newest; a joined record before a measured run of the same second."""
    if not runs:
        raise RunRecordError("found no runs; expected at least one run")
    holders: dict[str, list[Run]] = {}
    for run in runs:
        for one in runs_of(run):
            holders.setdefault(one.id, []).append(run)
    for name, records in holders.items():
        if len(records) > 1:
            where = " and ".join(f"in the joined baseline {record.id}" for record in records if record.joined)
            raise RunRecordError(f"found run {name} {len(records)} times{f' ({where})' if where else ''}; expected each once: leave it out")
    for run in runs:
        if again := [name for name in run.resumed_from if name in holders]:
            raise RunRecordError(
                f"run {run.id} went on with run {again[0]} and holds its times, which would count twice; leave one of them out. Cases that "
                f"a stopped run lacks can be measured and added alone, too (`run --suite`, `--case`)"
            )
    return sorted(runs, key=lambda run: (run.created, not run.joined))


def support_words(run: Run) -> str:
    """`8 processes on 3 boards`; for too few processes also what to do."""
    processes, boards = processes_and_boards(run)
    words = f"{processes} process{'' if processes == 1 else 'es'} on {boards} board{'' if boards == 1 else 's'}"
    if partly := partly_joined(run):
        timed = [one.measurement.processes for one in run.results if one.measurement is not None]
        words += f" ({len(partly)} of {len(timed)} times on fewer, the least on {min(timed)})"
    if processes >= FEWEST_PROCESSES:
        return words
    advice = f"add runs up to {FEWEST_PROCESSES} processes: baseline promote RUN... --add"
    return f"{words}: too few to tell a process's or a board's mode from a change; {advice}"


def processes_and_boards(run: Run) -> tuple[int, int]:
    """The processes and boards that a run stands on: those of its runs together, or the fewest of its own kernels."""
    runs = runs_of(run)
    return sum(one.processes for one in runs), len(boards_of(*(one.board for one in runs)))


def partly_joined(run: Run) -> list[Result]:
    """The timed results of a joined run that rest on fewer runs than it was joined from; empty for a run that was measured."""
    return [one for one in run.results if one.measurement is not None and len(one.measurement.runs) < len(run.joined)]


def disturbed(run: Run) -> list[Result]:
    """The timed results of a measured run whose standard error is above `margins.support.MOST_ERROR`: they join no times of other runs."""
    timed = [] if run.joined else [one for one in run.results if one.measurement is not None]
    return [one for one in timed if one.measurement is not None and is_disturbed(own_variance(one.measurement))]


def shares(runs: Sequence[Run]) -> list[str]:
    """One sentence for each older run that some of the newest one's times lack: how many it joins, and why it does not join the others."""
    *older, newest = _in_order(runs)
    timed = [one for one in newest.results if one.measurement is not None]
    found = []
    for run in older:
        other = OlderRun(run, newest)
        reasons = Counter(why for one in timed if (why := other.why_not(one)))
        if reasons:
            told = "; ".join(f"{count}: {why}" for why, count in reasons.most_common())
            what = "baseline" if run.joined else "run"
            found.append(f"{what} {run.id} joins {len(timed) - reasons.total()} of {len(timed)} times; {told}")
    return found


def _result(result: Result, others: Sequence[OlderRun], joined: Sequence[JoinedRun]) -> Result:
    """The result of all runs, of which the newest is the last of `joined`."""
    newest = result.measurement
    result = msgspec.structs.replace(result, verdict=None, attachments=())
    if newest is None:
        return result
    key = result.case_key
    found = [(other, timing) for other in others if (timing := other.alike(result)) is not None]
    own = _Part(0.0, own_variance(newest), 1)
    parts = [_Part(other.log_ratio(result), own_variance(one), max(1, len(one.runs))) for other, one in found]
    if quiet := [number for number, part in enumerate(parts) if not is_disturbed(part.variance)]:
        # What a disturbed time tells of the kernel is less than what it adds to the mean's error.
        found, parts = [found[number] for number in quiet], [parts[number] for number in quiet]
    left_out = bool(quiet) and is_disturbed(own.variance)
    counted = [*(one for _, one in found), *([] if left_out else [newest])]
    processes = sum(one.processes for one in counted)
    alone = not found  # its intervals stay as they are; others are over the processes of the joined time, also where a speedup is one run's
    time_us = newest.time_us if alone else _mean(newest.time_us, parts if left_out else [*parts, own], processes)
    ratio = time_us.value / newest.time_us.value
    speedup = newest.speedup
    if speedup is not None and not alone:
        base = others[0].baseline_in_newest(key)
        of_newest = _Part(0.0, standard_error(speedup, units_of(newest)) ** 2, 1)
        parts = []
        for other, one in found:
            if one.speedup is not None and (runs := other.runs_of_speedup(result, one)):
                log = math.log(one.speedup.value / speedup.value)
                parts.append(_Part(log, standard_error(one.speedup, units_of(one)) ** 2, runs))
        if not parts or not (left_out or (base is not None and is_disturbed(own_variance(base)))):
            parts = [of_newest, *parts]
        speedup = _mean(speedup, parts, processes)
    behind = [] if left_out else [(len(joined) - 1, others[0].board_in_newest(key))]
    behind += [run for other, one in found for run in other.runs_behind(one, key)]
    timing = msgspec.structs.replace(
        newest,
        placement_error=newest.placement_error if alone else None,
        looks=1,
        time_us=time_us,
        busy_us=counted[-1].busy_us,
        gap_us=counted[-1].gap_us,
        speedup=speedup,
        sol=_share(counted),
        gb_per_s=newest.gb_per_s / ratio,
        peak_share=None if newest.peak_share is None else newest.peak_share / ratio,
        replicates=sum(one.replicates for one in counted),
        processes=processes,
        runs=tuple(place for place, _ in sorted(behind)),
        boards=() if all(joined[place].board == board for place, board in behind) else tuple(board for _, board in sorted(behind)),
    )
    return msgspec.structs.replace(result, measurement=timing)


def _over_quiet_baselines(results: Sequence[Result], cases: Sequence[CaseSummary], newest: int) -> list[Result]:
    """The results, of which those that only the newest run timed get their speedup from the joined time of the case's baseline, where the
    newest run's own time of it was disturbed and left out; `newest` is that run's place."""
    times = {(one.case_key, one.kernel): one.measurement for one in results}
    bases = {summary.case.key: times.get((summary.case.key, summary.baseline or "")) for summary in cases}

    def mended(result: Result) -> Result:
        timing, base = result.measurement, bases.get(result.case_key)
        if timing is None or timing.speedup is None or timing.runs != (newest,) or base is None or newest in base.runs:
            return result
        speedup = quotient(base.time_us, timing.time_us)
        return msgspec.structs.replace(result, measurement=msgspec.structs.replace(timing, speedup=speedup))

    return [mended(one) for one in results]


def _summary(summary: CaseSummary, others: Sequence[OlderRun]) -> CaseSummary:
    """The case with its yardsticks' times over all runs, at the newest run's machine state, as the kernels' times are."""
    found = [one for other in others if (one := other.yardsticks(summary)) is not None]
    changed: dict[str, Estimate] = {}
    for name in ("stream_us", "copy_us"):
        newest = getattr(summary, name)
        parts = [(math.log(time.value / newest.value) - drift, n) for one, drift, n in found if newest and (time := getattr(one, name))]
        if newest is not None and parts:
            value = newest.value * math.exp(math.fsum(n * log for log, n in parts) / (1 + sum(n for _, n in parts)))
            shift = value / newest.value
            changed[name] = Estimate(value, newest.low * shift, newest.high * shift, newest.level)
    return msgspec.structs.replace(summary, **changed)


def _share(counted: Sequence[Measurement]) -> float | None:
    """The mean of the runs' shares of SOL, each of a time and a limit that the same rounds measured: over the mean limit of all runs, the
    time of a few on fast boards could be above 100 %."""
    shares = [(math.log(one.sol), max(1, len(one.runs))) for one in counted if one.sol]
    return math.exp(math.fsum(runs * log for log, runs in shares) / sum(runs for _, runs in shares)) if shares else None


class _Part(NamedTuple):
    """A time of one of the records that are joined, or its speedup."""

    log: float
    """The logarithm relative to the newest run's."""
    variance: float
    """Of the logarithm."""
    runs: int
    """How many runs are behind it."""


def _mean(newest: Estimate, parts: Sequence[_Part], processes: int) -> Estimate:
    """The mean of the parts' runs, each with the same weight: a part is the mean of its runs already, and its variance is that mean's.  The
    interval is over the placements and processes that the runs know; what differs between runs and boards is in the scatter of the device
    model."""
    runs = sum(one.runs for one in parts)
    value = newest.value * math.exp(math.fsum(one.runs * one.log for one in parts) / runs)
    error = math.sqrt(math.fsum(one.runs**2 * one.variance for one in parts)) / runs
    half = quantile(0.5 + newest.level / 2, processes - 1) * error
    if not math.isfinite(half):
        return Estimate(value, 0.0, math.inf, newest.level)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), newest.level)
