"""One comparison of a search: a commit's kernel against another commit's, by `fusebench ab`, and its answer."""

from __future__ import annotations

from pathlib import Path

from ..runner.ab.command import ComparisonRequest, IdenticalSource, measure_comparison
from ..runner.ab.strategy import ComparisonOptions
from ..runner.context import Reporter
from ..schema import FAILED_STATUSES, ConfirmationOutcome, VerdictKind
from ..stats.bisection import Side, side_of
from ..stats.sequential import Plan
from ..store.bisection_record import COMPARISONS, Basis, Commit, Probe
from ..store.comparison_record import ComparedKernel
from .bisect_request import BisectRequest
from .checkouts import Checkouts


class Prober:
    """Measures commits of one search."""

    def __init__(self, request: BisectRequest, kernel: str, checkouts: Checkouts, folder: Path, reporter: Reporter) -> None:
        """`folder`: the search's own."""
        self._request, self._kernel, self._checkouts, self._folder, self._reporter = request, kernel, checkouts, folder, reporter

    def measure(self, commit: Commit, against: str, plan: Plan, *, evidence: bool, budget_s: float | None) -> Probe:
        """Compare the kernel of `commit` with that of `against`.

        Args:
            evidence: also compare their compiled code and counters, where that was asked for.
            budget_s: seconds of the comparison.

        Raises:
            Exception: whatever ended the comparison early.
        """
        request, head = self._request, self._checkouts.kernels(commit.commit)
        outcome = measure_comparison(
            ComparisonRequest(
                project=request.project,
                collection=head,
                cases=[request.case],
                base=self._checkouts.base(against),
                device=request.device,
                timer=request.timer,
                plan=request.plan,
                options=ComparisonOptions(looks=plan, kernel=self._kernel, command=request.command),
                budget_s=budget_s,
                wait_s=request.wait_s,
                silence_s=request.silence_s,
                out=self._folder / COMPARISONS,
                evidence=request.evidence if evidence else None,
                head_commit=commit.commit,
            ),
            self._reporter,
        )
        if isinstance(outcome, IdenticalSource):
            return unmeasured(commit, against, Basis.SAME_SOURCE, Side.FAST, Basis.SAME_SOURCE.value)
        if outcome.interruption is not None:
            raise outcome.interruption
        one = next(kernel for kernel in outcome.record.kernels if kernel.kernel == self._kernel)
        folder = outcome.folder.name if outcome.folder is not None else ""
        return answer(one, plan, request.looks, commit=commit, against=against, folder=folder)


def unmeasured(commit: Commit, against: str, basis: Basis, side: Side, reason: str, *, failed: bool = False) -> Probe:
    """An answer without a comparison."""
    return Probe(commit=commit.commit, subject=commit.subject, against=against, basis=basis, side=side, reason=reason, failed=failed)


def answer(one: ComparedKernel, plan: Plan, smallest: Plan, *, commit: Commit, against: str, folder: str) -> Probe:
    """The answer that a comparison gives about `commit`.

    Args:
        plan: of the comparison.
        smallest: its margin is the slowdown that matters.
        folder: name of the comparison's folder.
    """
    failed = one.new_status in FAILED_STATUSES or one.old_status in FAILED_STATUSES
    timed = one.finding is not None
    same = not timed and not failed and one.same_code is True
    basis = Basis.TIMED if timed else Basis.SAME_CODE if same else Basis.NONE
    side = Side.FAST if same else Side.UNTESTABLE
    slower = False
    if one.finding is not None and one.old_us is not None:
        side = side_of(one.finding, one.confirmation, smallest.margin_at(one.old_us))
        confirmed = one.confirmation is not None and one.confirmation.outcome is ConfirmationOutcome.CONFIRMED
        # Of identical machine code whose data changed, `ab` leaves the cause open; here the commit is the cause.
        in_noise = one.verdict.kind is VerdictKind.UNDECIDED and not one.same_code
        slower = one.finding.kind is VerdictKind.REGRESSION and confirmed and not in_noise
    return Probe(
        commit=commit.commit,
        subject=commit.subject,
        against=against,
        basis=basis,
        side=side,
        reason=one.verdict.reason or one.reason,
        slower=slower,
        finding=one.finding,
        confirmation=one.confirmation,
        margin=plan.margin,
        time_us=one.old_us,
        changed_files=one.changed_files,
        failed=failed,
        folder=folder,
        attachments=one.attachments,
    )
