"""Statements about one measurement that `run`, `ab` and `calibrate` share: its timer, late calls, failures, and whether it was cold.

What follows from samples that are not cold differs: a run keeps the case without its label, a comparison does not judge it, a
calibration leaves it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...schema import Case
from ...stats.paired import spans_by_replicate, time_estimate
from ...timing.coldness import contradiction
from .protocol import Failure, Measured

LATE_SHARE = 0.05
"""Share of an arm's calls that may have waited for the host without a remark: a GPU's trimmed means leave out twice as many."""


def remark_on_timer(reply: Measured) -> str:
    """Why the times are not those of the device's default timer; empty if they are, or where the timer was asked for."""
    return f"timer {reply.timer} instead of the device's default: {reply.timer_fallback}" if reply.timer_fallback else ""


def remarks_on_timing(case: Case, replies: Sequence[Measured]) -> list[str]:
    """What was unusual about the timing of a case in one or several processes, one sentence each."""
    found = []
    if retries := sum(reply.timer_retries for reply in replies):
        often = "once" if retries == 1 else f"{retries} times"
        found.append(f"case {case.key}: the timer failed {often}, as where records are lost, and the same calls were timed again")
    if unverified := next((reply.unverified for reply in replies if reply.unverified), ""):
        found.append(f"case {case.key}: outputs of timed calls were not compared: {unverified}")
    if late := _late_arms(replies):
        found.append(f"case {case.key}: the device waited for the host inside of {', '.join(late)}: their gaps are the host's too")
    return found


def said_by_arm(told: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """By arm, what the first process with a remark on it says; `told` holds those of each process."""
    found: dict[str, str] = {}
    for number, remarks in enumerate(told):
        for arm, text in remarks.items():
            found.setdefault(arm, text if number == 0 else f"in process {number + 1}: {text}")
    return found


def _late_arms(replies: Sequence[Measured]) -> list[str]:
    """How often the device waited for the host inside an arm's calls, for arms where the share of such calls exceeds `LATE_SHARE`."""
    calls = Counter(sample.arm for reply in replies for sample in reply.samples)
    late: Counter[str] = Counter()
    for reply in replies:
        late.update(reply.late_calls)
    return [f"{count} of {calls[arm]} calls of {arm}" for arm, count in sorted(late.items()) if count > LATE_SHARE * calls[arm]]


def own_failure(failure: Failure) -> str:
    """The reason in the record of the kernel that failed while it was timed."""
    return f"while it was being timed: {failure.reason}"


def common_failure(failure: Failure) -> str:
    """The reason in the record of every kernel of a case, where none of them is to blame."""
    return f"while {failure.kernel or 'no kernel'} was being timed: {failure.reason}"


def label_refused(measured: Measured, trim: float) -> str:
    """What contradicts the label `cold` of these samples, in words; empty if nothing does, and for samples without that label.

    Args:
        trim: share of a replicate's samples cut from each end, as in the plan.
    """
    if measured.coldness is None:
        return ""
    moved = {
        arm: (measured.memory_bytes[arm], time_estimate(list(replicates.values()), trim).value / 1e3)
        for arm, replicates in spans_by_replicate(measured.samples).items()
        if arm in measured.memory_bytes
    }
    return contradiction(moved, measured.coldness)
