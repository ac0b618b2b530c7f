"""The verdicts of `ab` on every kernel of two revisions, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..schema import FAILED_STATUSES, AAPair, ExitCode, Role, Verdict, VerdictKind
from ..store.comparison_record import ComparedKernel, RevisionPresence
from .accuracy_change import with_accuracy
from .conclusion import Conclusion, PairedComparison, conclude_all
from .exit_status import exit_code_of
from .identical_code import verdict_in_changed_folder, verdict_on_identical
from .noise_floor import noise_by_class, noise_near

PENDING = Verdict(kind=VerdictKind.UNDECIDED, reason="the comparison has not ended")


def judge_revisions(kernels: Sequence[ComparedKernel], aa_pairs: Sequence[AAPair]) -> list[ComparedKernel]:
    """`kernels` with their final verdicts, in their order.

    Args:
        kernels: every kernel on every case, as measured.
        aa_pairs: the run's noise floor.
    """
    noise = noise_by_class(aa_pairs)
    compared = {
        place: PairedComparison(
            finding=one.finding,
            confirmation=one.confirmation,
            noise=noise_near(noise_by_class(_of_others(aa_pairs, one)) if identical(one) else noise, _base_us(one), one.launches),
        )
        for place, one in enumerate(kernels)
        if one.finding is not None and judged_by_times(one)
    }
    conclusions = dict(zip(compared, conclude_all(list(compared.values())), strict=True))
    return [_with_verdict(one, conclusions.get(place)) for place, one in enumerate(kernels)]


def ab_exit_code(kernels: Sequence[ComparedKernel], earlier: ExitCode = ExitCode.PASS) -> ExitCode:
    """5 if a kernel of this checkout failed, 1 for a regression, 4 for an undecided verdict or without any comparison, else 0.

    Peers are advisory.  Kernels that only one revision has, and others that are incomparable, do not count.

    Args:
        kernels: with their final verdicts.
        earlier: the code that measuring gave.
    """
    kinds = [one.verdict.kind for one in kernels if one.role is not Role.PEER and one.verdict.kind is not VerdictKind.INCOMPARABLE]
    return exit_code_of(kinds, if_none=ExitCode.UNDECIDED, others=[earlier])


def identical(one: ComparedKernel) -> bool:
    """Whether both revisions are known to run the same code."""
    return one.presence is RevisionPresence.BOTH and (not one.changed_files or one.same_code is True)


def judged_by_times(one: ComparedKernel) -> bool:
    """Whether its times count: its code differs, or is not known, or the kernels folders differ, so that it may read something else."""
    return not identical(one) or not one.same_root


def _of_others(aa_pairs: Sequence[AAPair], one: ComparedKernel) -> list[AAPair]:
    """The noise floor without the kernel's own comparison, behind which it would hide."""
    return [pair for pair in aa_pairs if (pair.case, pair.kernel) != (one.case_key, one.kernel)]


def _base_us(one: ComparedKernel) -> float:
    assert one.old_us is not None, "a kernel with a finding was timed"
    return one.old_us


def _with_verdict(one: ComparedKernel, conclusion: Conclusion | None) -> ComparedKernel:
    adjusted_p = conclusion.adjusted_p if conclusion is not None else None
    return msgspec.structs.replace(one, verdict=_verdict(one, conclusion), adjusted_p=adjusted_p)


def _verdict(one: ComparedKernel, conclusion: Conclusion | None) -> Verdict:
    if one.new_status in FAILED_STATUSES:
        return Verdict(kind=VerdictKind.ERROR, reason=one.reason)
    if one.presence is not RevisionPresence.BOTH or one.old_status in FAILED_STATUSES:
        return Verdict(kind=VerdictKind.INCOMPARABLE, reason=one.reason)
    if not one.changed_files:
        return _on_identical(one, conclusion, "source files")
    if one.same_code:
        speed = _on_identical(one, conclusion, "machine code")
    elif conclusion is not None:
        speed = conclusion.verdict
    elif one.verdict != PENDING:
        speed = one.verdict
    elif one.new_accuracy is not None and one.old_accuracy is not None and one.reason:
        speed = Verdict(kind=VerdictKind.INCOMPARABLE, reason=f"accuracy as before; not timed: {one.reason}")
    else:
        return Verdict(kind=VerdictKind.INCOMPARABLE, reason=one.reason)
    return with_accuracy(speed, one.new_accuracy, one.old_accuracy, paired=True)


def _on_identical(one: ComparedKernel, conclusion: Conclusion | None, what: str) -> Verdict:
    if conclusion is None or one.finding is None:
        return verdict_on_identical(one.finding.change if one.finding is not None else None, what)
    # Without a changed file that it may read, an unclear comparison is an A/A comparison as any other.
    if not one.changed_data and not one.finding.claims_change:
        return verdict_on_identical(one.finding.change, what)
    return verdict_in_changed_folder(conclusion.verdict, what, one.changed_data)
