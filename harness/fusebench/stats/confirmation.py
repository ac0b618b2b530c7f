"""A finding repeated in fresh processes: the sign test over processes, and the p-value of both stages together.

Replicates in one process share its state: memory mapping, compiled code, time of day. No number of them can separate that state from the
kernel. So the process is the unit here: each fresh process estimates the change by itself, on its own random placements.

If the true change is within the margin and processes scatter symmetrically about it, an estimate lies beyond the margin with probability
at most a half, and all P estimates do with probability at most 2**-P (the sign test at its sharpest), whatever the distribution.  First
finding and confirmation rest on different processes, so their probabilities multiply: `alarm_level` x 2**-P, 0.016 % by default.  By the
same argument a finding that no process repeats may end as a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..schema import Confirmation, ConfirmationOutcome, Finding, VerdictKind
from .sequential import Plan
from .signed_rank import center, walsh_averages


def confirm(finding: Finding, by_process: Sequence[Sequence[float]], pass_level: float = Plan().pass_level) -> Confirmation:
    """Compare a claimed change with its estimates in fresh processes.

    Args:
        finding: a regression or an improvement.
        by_process: log ratios, head over base, by process, then by replicate.
        pass_level: a change as large as the margin is refuted with at most this probability.

    Raises:
        ValueError: no process, one without replicates, or a finding that claims no change.
    """
    if not finding.claims_change:
        raise ValueError(f"the finding is {finding.kind.value}, which claims no change: only a regression or an improvement is confirmed")
    if len(by_process) == 0:
        raise ValueError("no fresh process was measured: nothing to confirm the finding with")
    centers = [center(walsh_averages(logs)) for logs in by_process]
    limit = math.log1p(finding.margin)
    sign = 1.0 if finding.kind is VerdictKind.REGRESSION else -1.0
    agreeing = sum(sign * value > limit for value in centers)
    outcome = ConfirmationOutcome.UNCLEAR
    if agreeing == len(centers):
        outcome = ConfirmationOutcome.CONFIRMED
    elif all(abs(value) <= limit for value in centers) and 0.5 ** len(centers) <= pass_level:
        outcome = ConfirmationOutcome.REFUTED
    return Confirmation(outcome=outcome, estimates=tuple(math.exp(value) for value in centers), agreeing=agreeing)


def combined_p(finding: Finding, confirmation: Confirmation | None, direction: VerdictKind = VerdictKind.REGRESSION) -> float:
    """P-value of "no change beyond the margin" in one `direction` (`regression` or `improvement`), over both stages.

    p if that direction was not found; p x 2**-P if it was found and confirmed; 1 if it was found and not confirmed (or not yet).
    It is a valid p-value: below `alarm_level`, P(confirmed and p x 2**-P <= u) <= min(1, u x 2**P) x 2**-P <= u; above, the event
    implies p <= u.
    """
    first = finding.p_faster if direction is VerdictKind.IMPROVEMENT else finding.p_slower
    if finding.kind is not direction:
        return first
    return first * confirmation.p_value if confirmation is not None and confirmation.outcome is ConfirmationOutcome.CONFIRMED else 1.0
