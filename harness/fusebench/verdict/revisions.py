"""What a whole comparison amounts to: findings held against confirmation, noise, the number of comparisons and accuracy, in that order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..schema import FAILED_STATUSES, AAPair, ExitCode, Role, Verdict, VerdictKind, worst_exit_code
from ..stats.confirmation import combined_p, conclude
from ..stats.fdr import DEFAULT_RATE, select
from ..store.comparison_record import ComparedKernel, Standing
from .accuracy_change import with_accuracy
from .identical_code import NoiseByClass, against_noise, noise_by_class, noise_near, verdict_on_identical

CHANGES = (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)
PENDING = Verdict(kind=VerdictKind.UNDECIDED, reason="the comparison has not ended")


def judged(kernels: Sequence[ComparedKernel], twins: Sequence[AAPair], rate: float = DEFAULT_RATE) -> list[ComparedKernel]:
    """`kernels` with their final verdicts, in their order."""
    adjusted, noise = _adjusted(kernels, rate), noise_by_class(twins)
    return [_judged(one, noise, adjusted.get(place), rate) for place, one in enumerate(kernels)]


def exit_code(kernels: Sequence[ComparedKernel], earlier: ExitCode = ExitCode.PASS) -> ExitCode:
    """5 where a kernel of this checkout failed, 1 for a regression, 4 for what is undecided or where nothing was compared at all.

    Peers have no say: they are another library's to mend.
    """
    codes = [earlier]
    kinds = [one.verdict.kind for one in kernels if one.role is not Role.PEER]
    if VerdictKind.ERROR in kinds:
        codes.append(ExitCode.KERNEL_FAILED)
    if VerdictKind.REGRESSION in kinds:
        codes.append(ExitCode.REGRESSION)
    if VerdictKind.UNDECIDED in kinds or all(kind is VerdictKind.INCOMPARABLE for kind in kinds):
        codes.append(ExitCode.UNDECIDED)
    return worst_exit_code(codes)


def tested(one: ComparedKernel) -> bool:
    """Whether its times were put to a test whose answer was not known beforehand."""
    return one.finding is not None and not identical(one)


def identical(one: ComparedKernel) -> bool:
    """Whether both sides are known to run the same code."""
    return one.standing is Standing.BOTH and (not one.changed_files or one.same_code is True)


def _adjusted(kernels: Sequence[ComparedKernel], rate: float) -> dict[int, float]:
    """By place, the adjusted p-value of every comparison that claims a change; each direction is a family of its own."""
    places = [place for place, one in enumerate(kernels) if tested(one)]
    found: dict[int, float] = {}
    for direction in CHANGES:
        p_values = [combined_p(finding, kernels[place].confirmation, direction) for place in places if (finding := kernels[place].finding)]
        for place, value in zip(places, select(p_values, rate).adjusted, strict=True):
            finding = kernels[place].finding
            if finding is not None and finding.kind is direction:
                found[place] = value
    return found


def _judged(one: ComparedKernel, noise: NoiseByClass, adjusted: float | None, rate: float) -> ComparedKernel:
    return msgspec.structs.replace(one, verdict=_verdict(one, noise, adjusted, rate), adjusted_p=adjusted)


def _verdict(one: ComparedKernel, noise: NoiseByClass, adjusted: float | None, rate: float) -> Verdict:
    if one.new_status in FAILED_STATUSES:
        return Verdict(kind=VerdictKind.ERROR, reason=one.reason)
    if one.standing is not Standing.BOTH or one.old_status in FAILED_STATUSES:
        return Verdict(kind=VerdictKind.INCOMPARABLE, reason=one.reason)
    change = one.finding.change if one.finding is not None else None
    if not one.changed_files:
        measured = verdict_on_identical(change)
        return msgspec.structs.replace(measured, reason=measured.reason.replace("machine code", "source files", 1))
    if one.same_code:
        speed = verdict_on_identical(change)
    elif one.finding is not None:
        speed = _speed(one, noise, adjusted, rate)
    elif one.verdict != PENDING:
        speed = one.verdict
    elif one.new_accuracy is not None and one.old_accuracy is not None and one.reason:
        speed = Verdict(kind=VerdictKind.INCOMPARABLE, reason=f"accuracy as before; not timed: {one.reason}")
    else:
        return Verdict(kind=VerdictKind.INCOMPARABLE, reason=one.reason)
    return with_accuracy(speed, one.new_accuracy, one.old_accuracy, paired=True)


def _speed(one: ComparedKernel, noise: NoiseByClass, adjusted: float | None, rate: float) -> Verdict:
    assert one.finding is not None
    assert one.old_us is not None
    verdict = against_noise(conclude(one.finding, one.confirmation), noise_near(noise, one.old_us, one.launches))
    if verdict.kind in CHANGES and adjusted is not None and adjusted > rate:
        reason = f"{verdict.reason}; among all comparisons of the run it is no finding (adjusted p {adjusted:.2g}, {rate:g} is allowed)"
        verdict = msgspec.structs.replace(verdict, kind=VerdictKind.UNDECIDED, reason=reason)
    return verdict
