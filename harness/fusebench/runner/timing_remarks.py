"""What a run and a comparison say alike of a measurement, and of one that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..schema import Case
from .messages import Failure, Measured

LATE_SHARE = 0.05
"""Share of an arm's calls that may have waited for the host without a word: a GPU's trimmed means leave out twice as many."""


def remark_on_timer(reply: Measured) -> str:
    """Why the times are not those of the device's default timer; empty where they are, or where the timer was asked for."""
    return f"timer {reply.timer} instead of the device's default: {reply.timer_fallback}" if reply.timer_fallback else ""


def remark_on_retries(case: Case, replicates: int) -> str:
    """That so often a replicate of the case, or some of its rounds, was measured once more; empty for never."""
    return f"case {case.key}: the timer lost records in {replicates} replicates, which were repeated" if replicates else ""


def remark_on_late_calls(case: Case, replies: Sequence[Measured]) -> str:
    """That the device waited for the host inside of more than `LATE_SHARE` of an arm's calls; empty where it did not."""
    calls = Counter(sample.arm for reply in replies for sample in reply.samples)
    late: Counter[str] = Counter()
    for reply in replies:
        late.update(reply.late_calls)
    seen = [f"{count} of {calls[arm]} calls of {arm}" for arm, count in sorted(late.items()) if count > LATE_SHARE * calls[arm]]
    return f"case {case.key}: the device waited for the host inside of {', '.join(seen)}: their gaps are the host's too" if seen else ""


def own_failure(failure: Failure) -> str:
    """The reason in the record of the kernel that failed while it was timed."""
    return f"while it was being timed: {failure.reason}"


def common_failure(failure: Failure) -> str:
    """The reason in the record of every kernel of a case, where none of them is to blame."""
    return f"while {failure.kernel or 'no kernel'} was being timed: {failure.reason}"
