"""One older record beside the newest one: the times of it that join the newest one's, at the newest one's machine state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...schema import CaseSummary, JoinedRun, Measurement, Result, Run
from ..comparability import case_differences
from ..identical_code import equal_code
from ..margins.support import board_of
from .yardsticks import LaunchGaps, drift_of, other_stream, relative_to_machine, yardstick_drifts


class OlderRun:
    """One of the older runs, beside the newest one; `places` are those of its runs in the new record's `joined`."""

    def __init__(self, run: Run, newest: Run, places: Sequence[int] = ()) -> None:
        self.run, self.newest, self.places = run, newest, places
        self.drifts = yardstick_drifts(run, newest)
        self.gaps = LaunchGaps(run, newest, self.drifts)
        self.cases: Mapping[str, CaseSummary] = {summary.case.key: summary for summary in run.cases}
        self.newest_cases: Mapping[str, CaseSummary] = {summary.case.key: summary for summary in newest.cases}
        self.results = {(one.case_key, one.kernel): one for one in run.results}
        self.newest_results = {(one.case_key, one.kernel): one for one in newest.results}
        self.runs_of_cases: dict[str, int] = {}
        """For each case, the most runs behind one of its times, and so behind its yardsticks, whose number no record holds."""
        for one in run.results:
            if one.measurement is not None:
                self.runs_of_cases[one.case_key] = max(self.runs_of_cases.get(one.case_key, 1), len(one.measurement.runs))

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

    def runs_behind(self, timing: Measurement, key: str) -> list[tuple[int, str]]:
        """The runs behind a time of it: the place of each in the new record's `joined`, and the board that measured the case."""
        if not self.run.joined:
            return [(self.places[0], board_of(self.cases[key], self.run))]
        boards = timing.boards or [self.run.joined[place].board for place in timing.runs]
        return [(self.places[place], board) for place, board in zip(timing.runs, boards, strict=True)]

    def board_in_newest(self, key: str) -> str:
        """The board that measured the case in the newest run."""
        return board_of(self.newest_cases[key], self.newest)

    def baseline_in_newest(self, key: str) -> Measurement | None:
        """The newest run's timing of the kernel that the case's speedups are over."""
        base = self.newest_results.get((key, self.newest_cases[key].baseline or ""))
        return None if base is None else base.measurement

    def runs_of_speedup(self, result: Result, timing: Measurement) -> int:
        """How many runs are behind its speedup: those that timed the newest run's code of the kernel and of the case's baseline."""
        base = self.newest_results.get((result.case_key, self.newest_cases[result.case_key].baseline or ""))
        then = self.cases[result.case_key].baseline
        if timing.speedup is None or base is None or base.kernel != then or (of_base := self.alike(base)) is None:
            return 0
        return len(set(timing.runs) & set(of_base.runs)) if self.run.joined else 1

    def log_ratio(self, newest: Result) -> float:
        """Its time of the same kernel over that of the newest run, on the logarithm, without what changed for all calls; both are timed."""
        key = newest.case_key
        mine = self.results[key, newest.kernel]
        assert mine.measurement is not None
        assert newest.measurement is not None
        if (drift := drift_of(self.cases[key], self.drifts, self.newest_cases[key])) is not None:
            return math.log(relative_to_machine(mine.measurement, newest.measurement, drift, self.gaps.of(mine)))
        log = math.log(mine.measurement.time_us.value / newest.measurement.time_us.value)
        mine_case, newest_case = self.cases[key], self.newest_cases[key]
        now, then = mine_case.stream_us, newest_case.stream_us
        if now is None or then is None or other_stream(mine_case, newest_case):
            return log
        return log - math.log(now.value / then.value)

    def yardsticks(self, summary: CaseSummary) -> tuple[CaseSummary, float, int] | None:
        """Its summary of the same case, the log of its machine's drift, and its runs; None where yardsticks cannot be joined."""
        mine = self.cases.get(summary.case.key)
        if mine is None or mine.not_cold or case_differences(mine.case, summary.case) or other_stream(mine, summary):
            return None
        drift = drift_of(mine, self.drifts, summary)
        if drift is None:
            return None
        return mine, math.log(drift.factor.value), self.runs_of_cases.get(summary.case.key, 1)


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


def runs_of(run: Run) -> tuple[JoinedRun, ...]:
    """The runs that a joined record was joined from, or the measured run itself."""
    return run.joined or (joined_run(run),)
