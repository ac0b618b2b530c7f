"""`fusebench bisect`: finds the commit that made a kernel slower, by comparisons of `fusebench ab` between commits.

The ends are compared first; then commits between them, each with good, in the order of `stats.bisection`; last the found commit with its
predecessor.  A commit whose kernel is the same as one that was judged takes that one's side.  A commit whose kernel cannot be compared is
passed by.  The record is written after every answer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..runner.context import Reporter
from ..runner.session import Interruption, Outcome, ended_by, signals_held
from ..schema import ExitCode, KernelId
from ..stats.bisection import Search, Side, plan_of_step, size_of
from ..stats.paired import describe_change
from ..stats.sequential import Plan
from ..store.bisection_record import Basis, Bisection, Commit, Probe, bisection_folder, keep_bisection
from ..store.files import require_writable
from ..store.finding import runs_folder
from .bisect_request import BisectRequest, carried_over, first_record, followed_kernel, stopped_search
from .checkouts import Checkouts
from .commits import History, history
from .probing import Prober, unmeasured
from .same_code import SameCode

LEAST_S = 10.0
"""Seconds without which a comparison is not begun: starting processes and checking alone take that long on a GPU."""


class BudgetSpentError(Exception):
    """The search's time is over."""


def find_commit(request: BisectRequest, reporter: Reporter) -> Outcome[Bisection]:
    """Search, and write the record. An interrupted search is written with what it found so far.

    Raises:
        UsageError: the ends cannot be searched between, or the folder takes no record.
        DeviceUnfitError: through the outcome; what was found before is kept.
    """
    parent = request.out if request.out is not None else runs_folder(request.project)
    require_writable(parent, instead="name another with --out DIR")
    resumed = stopped_search(request.resume, request.project) if request.resume is not None else None
    if resumed is not None:
        parent = resumed[0].parent
    found = history(request.project.root, request.good, request.bad, request.roots)
    for note in found.notes:
        reporter.note(note)
    with tempfile.TemporaryDirectory(prefix="fusebench-bisect-") as scratch:
        folder = Path(scratch)
        with Checkouts(request.project, request.roots, request.case, folder / "commits", reporter.note) as checkouts:
            kernel = followed_kernel(request, found, checkouts)
            begun = first_record(request, found, str(kernel))
            state = carried_over(resumed[1], begun) if resumed is not None else (begun, [])
            search = _Bisect(request, reporter, found, kernel, checkouts, scratch=folder, parent=parent, begun=state)
            interruption = search.run()
    with signals_held() as received:
        record = search.record if interruption is None else ended_by(search.record, interruption)
        written = keep_bisection(parent, record) if record.probes or interruption is None else None
    if interruption is None and received:
        interruption = KeyboardInterrupt()
    return Outcome(record=record, folder=written, interruption=interruption, kept="what was found is kept")


class _Bisect:
    """One search. `record` may be read at any time."""

    def __init__(
        self,
        request: BisectRequest,
        reporter: Reporter,
        found: History,
        kernel: KernelId,
        checkouts: Checkouts,
        *,
        scratch: Path,
        parent: Path,
        begun: tuple[Bisection, Sequence[Probe]],
    ) -> None:
        """`begun`: the record, and the answers of the stopped search that this one goes on with."""
        self.record, self._earlier = begun
        self._request, self._reporter, self._groups, self._kernel, self._checkouts = request, reporter, found.groups, kernel, checkouts
        self._parent = parent
        self._same = SameCode(str(kernel), request.case, request.device, scratch / "code", reporter.note)
        self._prober = Prober(request, str(kernel), checkouts, bisection_folder(parent, self.record), reporter)
        self._end = time.monotonic() + request.budget_s if request.budget_s is not None else None
        self._search = Search(len(found.groups) - 1)
        self._judged: dict[str, Side] = {}
        """Sides of the commits whose kernel was timed, and of the ends."""

    def run(self) -> Interruption | None:
        """Search to the end; returns what ended it early, or None."""
        try:
            self._between_the_ends()
        except BudgetSpentError:
            self._conclude(ExitCode.UNDECIDED, f"the budget of {self._request.budget_s:g} s is spent: {self._range()}", complete=False)
        except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  what was found is kept before it is raised again
            self._conclude(ExitCode.UNDECIDED, f"stopped: {self._range()}", complete=False)
            return error
        return None

    def _between_the_ends(self) -> None:
        good, bad, last = self._groups[0].first.commit, self._groups[-1].first, self._search.high
        ends = plan_of_step(self._request.looks, last)
        probe = self._answer(bad, good, ends, f"the ends, {bad.commit[:12]} against {good[:12]}", evidence=last == 1)
        self._note(probe)
        if probe.failed:
            self._conclude(ExitCode.KERNEL_FAILED, f"{self._kernel} fails at an end, {bad.commit[:12]} or {good[:12]}: {probe.reason}")
            return
        if not probe.slower or probe.finding is None or probe.confirmation is None:
            self._conclude(ExitCode.UNDECIDED, f"bad is not shown to be slower than good, so there is nothing to search: {probe.reason}")
            return
        size = size_of(probe.finding, probe.confirmation)
        self._change(size=size, suspects=self._suspects())
        self._judged = {good: Side.FAST, bad.commit: Side.SLOW}
        steps = plan_of_step(self._request.looks, last, size=size)
        while (place := self._search.next()) is not None:
            commit = self._groups[place].first
            answer = self._answer(commit, good, steps, f"{commit.commit[:12]} against good; {len(self._suspects())} commits are left")
            self._search.note(place, answer.side)
            if answer.basis is Basis.TIMED and answer.side is not Side.UNTESTABLE:
                self._judged[commit.commit] = answer.side
            self._change(suspects=self._suspects())
            self._note(answer)
        self._compare_with_predecessor(probe if last == 1 else None)

    def _compare_with_predecessor(self, step: Probe | None) -> None:
        """Compare the one suspect with its predecessor, unless `step` is that comparison."""
        before, culprit = self._groups[self._search.low], self._groups[self._search.high].first
        self._change(before=before.commits[-1])
        if self._search.high - self._search.low > 1:
            self._conclude(ExitCode.UNDECIDED, f"{self._range()}; those between cannot be tested")
            return
        if step is None:
            plan = plan_of_step(self._request.looks, len(self._groups) - 1)
            title = f"the found commit {culprit.commit[:12]} against its predecessor"
            step = self._answer(culprit, before.first.commit, plan, title, evidence=True, as_step=True)
        self._change(step=step)
        if step.slower and step.change is not None:
            self._conclude(ExitCode.PASS, f"commit {culprit.commit[:12]} made {self._kernel} slower: {describe_change(step.change, 2)}")
            return
        self._conclude(
            ExitCode.UNDECIDED,
            f"the search ended at commit {culprit.commit[:12]}, but compared with its predecessor alone it is not shown to be slower: "
            f"{step.reason}",
        )

    def _answer(self, commit: Commit, against: str, plan: Plan, title: str, *, evidence: bool = False, as_step: bool = False) -> Probe:
        """The answer about `commit`: of the stopped search, from equal code, or measured."""
        wanted = (commit.commit, against, plan.margin)
        probe = next((one for one in self._earlier if (one.commit, one.against, one.margin) == wanted), None)
        probe = probe or self._unmeasured(commit, against, {against: Side.FAST, **({} if as_step else self._judged)})
        if probe is None:
            left = self._end - time.monotonic() if self._end is not None else None
            if left is not None and left < LEAST_S:
                raise BudgetSpentError
            self._reporter.note(f"measure {title}")
            probe = self._prober.measure(commit, against, plan, evidence=evidence, budget_s=left)
            if self._end is not None and probe.side is Side.UNTESTABLE and not probe.failed and time.monotonic() >= self._end:
                raise BudgetSpentError  # it was cut short
        self._reporter.note(f"{commit.commit[:12]} is {probe.side.value}: {probe.reason}")
        return probe

    def _unmeasured(self, commit: Commit, against: str, judged: Mapping[str, Side]) -> Probe | None:
        """The answer that needs no measurement; None if there is none."""
        if why := self._checkouts.missing(commit.commit, self._kernel):
            return unmeasured(commit, against, Basis.NONE, Side.UNTESTABLE, why, failed=True)
        kernels = self._checkouts.kernels(commit.commit)
        for other, side in judged.items():
            if other != commit.commit and (basis := self._same.basis(kernels, self._checkouts.kernels(other))) is not None:
                return unmeasured(commit, other, basis, side, f"{basis.value} as {other[:12]}, which is {side.value}")
        return None

    def _suspects(self) -> list[Commit]:
        inside = [commit for group in self._groups[self._search.low + 1 : self._search.high] for commit in group.commits]
        return [*inside, self._groups[self._search.high].first]

    def _range(self) -> str:
        suspects = self._suspects()
        if len(suspects) == 1:
            return f"commit {suspects[0].commit[:12]} is the only suspect"
        return f"one of {len(suspects)} commits did it, {suspects[0].commit[:12]} to {suspects[-1].commit[:12]}"

    def _note(self, probe: Probe) -> None:
        self._change(probes=[*self.record.probes, probe])

    def _conclude(self, code: ExitCode, reason: str, *, complete: bool = True) -> None:
        self._change(exit_code=int(code), reason=reason, complete=complete)

    def _change(self, **known: Any) -> None:
        """Keep what is known now on disk, so that a kill loses one comparison at most."""
        self.record = msgspec.structs.replace(self.record, **known)
        if self.record.probes:
            keep_bisection(self._parent, self.record)
