"""What a run and a comparison say alike of a measurement, and of one that failed."""

from __future__ import annotations

from ..schema import Case
from .messages import Failure, Measured


def remark_on_timer(reply: Measured) -> str:
    """Why the times are not those of the device's default timer; empty where they are, or where the timer was asked for."""
    return f"timer {reply.timer} instead of the device's default: {reply.timer_fallback}" if reply.timer_fallback else ""


def remark_on_retries(case: Case, replicates: int) -> str:
    """That so many replicates of the case were measured more than once; empty for none."""
    return f"case {case.key}: {replicates} replicates were repeated because the timer lost records" if replicates else ""


def own_failure(failure: Failure) -> str:
    """The reason in the record of the kernel that failed while it was timed."""
    return f"while it was being timed: {failure.reason}"


def common_failure(failure: Failure) -> str:
    """The reason in the record of every kernel of a case, where none of them is to blame."""
    return f"while {failure.kernel or 'no kernel'} was being timed: {failure.reason}"
