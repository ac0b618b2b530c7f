"""Two findings that a gate reports besides regressions: suites that shrank, and improvements without a known cause.

Both weaken a benchmark that stays green. A dropped case cannot regress. An improvement without a cause is a changed measurement until
proven otherwise, and it becomes the next baseline if nobody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import msgspec

from ...schema import Case, Result, Run, Status, VerdictKind
from ...stats.paired import describe_change
from ..comparability import toolchain_changes
from .judgement import Judgement

YARDSTICK_LIMIT = 1.10
"""The fastest of 866 timings of one H200 reached 1.053 times the speed of its faster yardstick, a copy or streaming yardstick of as many
bytes in the same rounds.  Twice that excess cannot come from a well-written kernel."""


UNEXPLAINED_WORDS = "unexplained improvement of"
"""The warning about an `Unexplained` begins with them."""


class Shrinkage(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of one suite of the baseline in the run."""

    suite: str
    cases: tuple[str, ...]
    """Cases that the run does not hold."""
    kernels: tuple[str, ...]
    """`case: kernel` pairs that the baseline measured or checked and the run did not, although it holds their cases."""
    untimed: tuple[str, ...]
    """`case: kernel` pairs that the baseline timed and the run only checked."""
    unchecked: tuple[str, ...]
    """`case: kernel` pairs with a known accuracy in the baseline only."""
    lost_weight: float
    """Share of the suite's launches per denoise step in the lost cases."""

    def __str__(self) -> str:
        parts = [
            f"{one if len(found) == 1 else f'{len(found)} {several}'}: {', '.join(found)}"
            for one, several, found in (
                ("1 case is gone", "cases are gone", self.cases),
                ("1 kernel no longer runs", "kernels no longer run", self.kernels),
                ("1 kernel is no longer timed", "kernels are no longer timed", self.untimed),
                ("1 kernel is no longer checked", "kernels are no longer checked", self.unchecked),
            )
            if found
        ]
        lost = f" ({100 * self.lost_weight:.1f} % of its weight)" if self.cases else ""
        return f"suite {self.suite} has shrunk{lost}: {'; '.join(parts)}"


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """An improvement without a known cause."""

    suite: str
    case: str
    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{UNEXPLAINED_WORDS} {self.kernel} on {self.suite}:{self.case}: {self.reason}"


def shrinkage(run: Run, baseline: Run) -> list[Shrinkage]:
    """The suites of `baseline` that lost something in `run`, in the baseline's order.

    A failed kernel is not a lost one: it has its own verdict.
    """
    new = {(result.case_key, result.kernel): result for result in run.results}
    cases = {summary.case.key for summary in run.cases}
    by_suite: dict[str, list[Case]] = {}
    for summary in baseline.cases:
        by_suite.setdefault(summary.case.suite, []).append(summary.case)
    losses: dict[str, dict[str, list[str]]] = {suite: {"kernels": [], "untimed": [], "unchecked": []} for suite in by_suite}
    for old in baseline.results:
        if old.suite in losses and old.case_key in cases and (what := _lost(new.get((old.case_key, old.kernel)), old)):
            losses[old.suite][what].append(f"{old.case}: {old.kernel}")
    found = []
    for suite, before in by_suite.items():
        gone = [case for case in before if case.key not in cases]
        lost = losses[suite]
        if gone or any(lost.values()):
            weight = fsum(case.weight for case in before if not case.variant)
            away = fsum(case.weight for case in gone if not case.variant)
            found.append(
                Shrinkage(
                    suite=suite,
                    cases=tuple(case.name for case in gone),
                    lost_weight=away / weight if weight else 0.0,
                    **{what: tuple(places) for what, places in lost.items()},
                )
            )
    return found


def unexplained_improvements(judgements: Sequence[Judgement], run: Run, baseline: Run) -> list[Unexplained]:
    """Improvements of `run` over `baseline` that neither changed code nor a changed toolchain explains.

    Neither of these explains a kernel much faster than the yardsticks of its own rounds (`YARDSTICK_LIMIT`). This limit is the only test of
    advisory improvements: other libraries, and torch.compile, which tunes anew, change code that no record holds.
    """
    toolchain = toolchain_changes(run, baseline)
    shares = {(result.case_key, result.kernel): result.measurement.sol for result in run.results if result.measurement is not None}
    found = []
    for judgement in judgements:
        if VerdictKind.IMPROVEMENT not in (judgement.verdict.kind, judgement.kind_by_times):
            continue
        share = shares.get((f"{judgement.suite}:{judgement.case}", judgement.kernel)) or 0.0
        if share > YARDSTICK_LIMIT:
            why = (
                f"it moves its bytes at {100 * share:.0f} % of the speed of its faster yardstick, "
                f"beyond the {100 * YARDSTICK_LIMIT:.0f} % that code can "
                "account for: suspect the cache, the yardstick or work that is left out"
            )
        elif not judgement.verdict.gating:
            continue
        elif judgement.same_code:
            why = "its machine code is the baseline's: suspect the measurement, or a clock or driver setting"
        elif judgement.same_code is None and not toolchain:
            why = "whether its code changed is not recorded, and the toolchain did not: find the cause before promoting this run"
        else:
            continue
        change = judgement.verdict.change
        seen = describe_change(change, 2) if change is not None else "faster"
        found.append(Unexplained(suite=judgement.suite, case=judgement.case, kernel=judgement.kernel, reason=f"{seen}; {why}"))
    return found


def _lost(new: Result | None, old: Result) -> str:
    """The kind of loss, one of three; empty without a loss."""
    if old.status not in (Status.MEASURED, Status.CHECKED):
        return ""
    if new is None or new.status in (Status.UNSUPPORTED, Status.NOT_RUNNABLE, Status.NOT_MEASURED):
        return "kernels"
    if new.covers and not old.covers and new.status in (Status.MEASURED, Status.CHECKED):
        return "kernels"  # what it does now is a part of what it did
    if new.status not in (Status.MEASURED, Status.CHECKED):
        return ""
    if old.status is Status.MEASURED and new.status is Status.CHECKED:
        return "untimed"
    return "unchecked" if old.accuracy is not None and new.accuracy is None else ""
