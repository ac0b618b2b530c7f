"""Several runs of the same work joined into one baseline: each time is the mean over the runs, on the logarithm.

One run stands on one process of one board, and a gate cannot tell either from the kernel.  In a joined baseline they average out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ...errors import RunRecordError
from ...schema import CaseSummary, Estimate, ExitCode, JoinedRun, Measurement, Result, Run, boards_of
from ...stats.scatter import standard_error
from ...stats.student import quantile
from ...stats.weighted import suite_summaries
from ..comparability import case_differences, record_differences
from ..identical_code import equal_code
from ..margins.support import board_of, own_variance, units_of
from .yardsticks import drift_of, launch_gap, other_stream, relative_to_machine, yardstick_drifts

FEWEST_PROCESSES = 8
"""A baseline of fewer processes has an objection: gates against it leave more kernels undecided.  Eight nightlies of one process each, or
one run of eight, are enough."""


def join_runs(runs: Sequence[Run]) -> Run:
    """The newest of `runs`, with the times of all of them.

    Each run counts the same.  A time of another run is brought to the newest one's machine state as a gate does: by the drift of the
    streaming yardsticks and of the launch gaps.  A kernel on a case joins the runs that timed it with the newest run's code; the others are
    left out of that time.

    Verdicts go, and exit codes that came from them: they judged one run's times by the last baseline.

    Raises:
        RunRecordError: no run, one run twice, or runs of different devices, timers or cache states.
    """
    ordered = sorted(runs, key=lambda run: run.created)
    if not ordered or len({run.id for run in runs}) < len(runs):
        raise RunRecordError(f"found runs {', '.join(run.id for run in runs) or 'none'}; expected at least one run, and each once")
    newest = ordered[-1]
    if len(ordered) == 1:
        return newest
    for run in ordered:
        if run.joined:
            raise RunRecordError(f"run {run.id} is a joined baseline already; name the runs that it was joined from")
        if different := record_differences(newest, run):
            raise RunRecordError(f"runs {run.id} and {newest.id} cannot be joined: {'; '.join(different)}; leave one of them out")
    others = [_Other(run, newest, place) for place, run in enumerate(ordered[:-1])]
    cases = [_summary(summary, others) for summary in newest.cases]
    limits = {summary.case.key: summary.limit_us for summary in cases}
    results = [_result(result, others, len(others), limits.get(result.case_key)) for result in newest.results]
    return msgspec.structs.replace(
        newest,
        joined=tuple(joined_run(run) for run in ordered),
        suites=suite_summaries(cases, results),
        cases=cases,
        results=results,
        exit_code=newest.exit_code if newest.exit_code == ExitCode.KERNEL_FAILED else ExitCode.PASS,
    )


def support_words(run: Run) -> str:
    """`8 processes on 3 boards`; for too few processes also what to do."""
    processes, boards = processes_and_boards(run)
    words = f"{processes} process{'' if processes == 1 else 'es'} on {boards} board{'' if boards == 1 else 's'}"
    if partly := partly_joined(run):
        timed = [one.measurement.processes for one in run.results if one.measurement is not None]
        words += f" ({len(partly)} of {len(timed)} times on fewer, the least on {min(timed)})"
    if processes >= FEWEST_PROCESSES:
        return words
    return f"{words}: too few to tell a process's or a board's mode from a change; join {FEWEST_PROCESSES} runs: baseline promote RUN..."


def processes_and_boards(run: Run) -> tuple[int, int]:
    """The processes and boards that a run stands on: those of its runs together, or the fewest of its own kernels."""
    joined = run.joined or (joined_run(run),)
    return sum(one.processes for one in joined), len({board for one in joined for board in boards_of(one.board)})


def partly_joined(run: Run) -> list[Result]:
    """The timed results of a joined run that rest on fewer runs than it was joined from; empty for a run that was measured."""
    return [one for one in run.results if one.measurement is not None and len(one.measurement.runs) < len(run.joined)]


def shares(runs: Sequence[Run]) -> list[str]:
    """One sentence for each older run that some of the newest one's times lack: how many it joins, and why it does not join the others."""
    *older, newest = sorted(runs, key=lambda run: run.created)
    timed = [one for one in newest.results if one.measurement is not None]
    found = []
    for place, run in enumerate(older):
        other = _Other(run, newest, place)
        reasons = Counter(why for one in timed if (why := other.why_not(one)))
        if reasons:
            told = "; ".join(f"{count}: {why}" for why, count in reasons.most_common())
            found.append(f"run {run.id} joins {len(timed) - reasons.total()} of {len(timed)} times; {told}")
    return found


class _Other:
    """One of the older runs, beside the newest one."""

    def __init__(self, run: Run, newest: Run, place: int) -> None:
        self.run, self.newest, self.place = run, newest, place
        self.drifts = yardstick_drifts(run, newest)
        self.gap = launch_gap(run, newest, self.drifts)
        self.cases: Mapping[str, CaseSummary] = {summary.case.key: summary for summary in run.cases}
        self.newest_cases: Mapping[str, CaseSummary] = {summary.case.key: summary for summary in newest.cases}
        self.results = {(one.case_key, one.kernel): one for one in run.results}

    def alike(self, result: Result) -> Measurement | None:
        """Its timing of the same kernel, code and work; None if it has none."""
        return None if self.why_not(result) else self.results[result.case_key, result.kernel].measurement

    def why_not(self, result: Result) -> str:
        """Why it has no timing of the same kernel, code and work; empty if it has one."""
        mine = self.results.get((result.case_key, result.kernel))
        now, then = self.cases.get(result.case_key), self.newest_cases.get(result.case_key)
        if mine is None or mine.measurement is None or now is None or then is None:
            return "not timed there"
        if now.not_cold or mine.suspicious:
            return "not cold, or suspicious, there"
        if mine.covers != result.covers or case_differences(now.case, then.case):
            return "another shape or part there"
        return "" if equal_code(mine, result, self.run, self.newest) else self._other_code(mine, result)

    def _other_code(self, mine: Result, newest: Result) -> str:
        """Why the code is not known to be the same."""
        if mine.code is not None and newest.code is not None:
            return "other machine code"
        commits = [
            f"{one.environment.git_commit[:12] or 'unknown'}{' with uncommitted changes' if one.environment.git_dirty else ''}"
            for one in (self.run, self.newest)
        ]
        return f"machine code not in both records, as on a CPU, and not one clean commit and toolchain ({commits[0]}, {commits[1]})"

    def log_ratio(self, mine: Measurement, newest: Measurement, key: str) -> float:
        """Its time over the newest run's, on the logarithm, without what changed for all calls."""
        if (drift := drift_of(self.cases[key], self.drifts, self.newest_cases[key])) is not None:
            return math.log(relative_to_machine(mine, newest, drift, self.gap))
        log = math.log(mine.time_us.value / newest.time_us.value)
        mine_case, newest_case = self.cases[key], self.newest_cases[key]
        now, then = mine_case.stream_us, newest_case.stream_us
        if now is None or then is None or other_stream(mine_case, newest_case):
            return log
        return log - math.log(now.value / then.value)

    def yardsticks(self, summary: CaseSummary) -> tuple[CaseSummary, float] | None:
        """Its summary of the same case, and the log of its machine's drift; None where yardsticks cannot be joined."""
        mine = self.cases.get(summary.case.key)
        if mine is None or mine.not_cold or case_differences(mine.case, summary.case) or other_stream(mine, summary):
            return None
        drift = drift_of(mine, self.drifts, summary)
        return None if drift is None else (mine, math.log(drift.factor.value))


def joined_run(run: Run) -> JoinedRun:
    """The facts that a joined record keeps of one of its runs."""
    timed = [one.measurement.processes for one in run.results if one.measurement is not None]
    environment = run.environment
    return JoinedRun(
        id=run.id,
        created=run.created,
        board=environment.device_uuid,
        git_commit=environment.git_commit,
        processes=min(timed, default=1),
    )


def _result(result: Result, others: Sequence[_Other], place: int, limit_us: float | None) -> Result:
    """The result of all runs; `place` is the newest one's among them, and `limit_us` the case's time at the speed of light."""
    newest = result.measurement
    result = msgspec.structs.replace(result, verdict=None)
    if newest is None:
        return result
    found = [(other, timing) for other in others if (timing := other.alike(result)) is not None]
    timings = [*(timing for _, timing in found), newest]
    logs = [*(other.log_ratio(timing, newest, result.case_key) for other, timing in found), 0.0]
    processes = sum(one.processes for one in timings)
    time_us = _mean(newest.time_us, logs, [own_variance(one) for one in timings], processes)
    ratio = time_us.value / newest.time_us.value
    speedups = [one.speedup for one in timings]
    speedup = newest.speedup
    if speedup is not None:
        known = [(one, timing) for one, timing in zip(speedups, timings, strict=True) if one is not None]
        errors = [standard_error(one, units_of(timing)) ** 2 for one, timing in known]
        speedup = _mean(speedup, [math.log(one.value / speedup.value) for one, _ in known], errors, processes)
    joined = msgspec.structs.replace(
        newest,
        time_us=time_us,
        speedup=speedup,
        sol=None if newest.sol is None or limit_us is None else limit_us / time_us.value,
        gb_per_s=newest.gb_per_s / ratio,
        peak_share=None if newest.peak_share is None else newest.peak_share / ratio,
        replicates=sum(one.replicates for one in timings),
        processes=processes,
        runs=(*(other.place for other, _ in found), place),
        boards=_measured_on(result.case_key, [other for other, _ in found], others[0]),
    )
    return msgspec.structs.replace(result, measurement=joined)


def _measured_on(key: str, found: Sequence[_Other], any_other: _Other) -> tuple[str, ...]:
    """The boards of the case in the runs `found` and the newest one; empty where a run's own entry in `Run.joined` says it."""
    summaries = [(other.cases[key], other.run) for other in found] + [(any_other.newest_cases[key], any_other.newest)]
    return tuple(board_of(*one) for one in summaries) if any(one.board for one, _ in summaries) else ()


def _summary(summary: CaseSummary, others: Sequence[_Other]) -> CaseSummary:
    """The case with its yardsticks' times over all runs, at the newest run's machine state, as the kernels' times are."""
    found = [one for other in others if (one := other.yardsticks(summary)) is not None]
    changed: dict[str, Estimate] = {}
    for name in ("stream_us", "copy_us"):
        newest = getattr(summary, name)
        logs = [math.log(time.value / newest.value) - drift for one, drift in found if newest and (time := getattr(one, name))]
        if newest is not None and logs:
            value = newest.value * math.exp(math.fsum(logs) / (len(logs) + 1))
            shift = value / newest.value
            changed[name] = Estimate(value, newest.low * shift, newest.high * shift, newest.level)
    return msgspec.structs.replace(summary, **changed)


def _mean(newest: Estimate, logs: Sequence[float], variances: Sequence[float], processes: int) -> Estimate:
    """The mean of the runs, each with the same weight; `logs` are relative to the newest value.  Its interval is over the placements and
    processes that the runs know; what differs between runs and boards is in the scatter of the device model."""
    if len(logs) == 1:
        return newest
    value = newest.value * math.exp(math.fsum(logs) / len(logs))
    half = quantile(0.5 + newest.level / 2, processes - 1) * math.sqrt(math.fsum(variances)) / len(logs)
    if not math.isfinite(half):
        return Estimate(value, 0.0, math.inf, newest.level)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), newest.level)
