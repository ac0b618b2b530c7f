"""A finding repeated in fresh processes, and what both together amount to.

Replicates in one process share what the process has: its mode of memory mapping, its compiled code, its moment of the day.
However many there are, they cannot tell that from the kernel.  So a first finding is repeated in several fresh processes, each on its own
random placements, and the process is the unit: every one of them must estimate the change beyond the margin, in the same direction.

If the true change is within the margin and processes scatter symmetrically about it, each does so with probability at most a half, and
all P with probability at most 2**-P (the sign test at its sharpest), whatever the distribution.  First finding and confirmation rest on
different processes, so their probabilities multiply: `alarm_level` x 2**-P, 0.016 % by default.  The same argument turned round lets
a finding that no process repeats end as a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..schema import Confirmation, ConfirmationOutcome, Finding, Verdict, VerdictKind
from .sequential import Plan
from .signed_rank import center, walsh_averages

PROCESSES = 5
"""Fresh processes that must agree: the fewest with 2**-P below the default `pass_level`."""

FEWEST_PLACEMENTS = 12
"""Replicates in each of them, or as many as the first finding took, where it took more.  At sd 0.56 % an estimate from 12 scatters by
0.17 %: a true 1 % lies 3.6 of these beyond a margin of 0.4 %, so all five agree 99.9 % of the time."""


def needs_confirmation(finding: Finding) -> bool:
    """Whether the finding claims a change."""
    return finding.kind in (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)


def placements_for(finding: Finding) -> int:
    """Replicates to take in each fresh process: as many as showed the change the first time, so that each can show it again."""
    return max(FEWEST_PLACEMENTS, finding.replicates)


def confirm(finding: Finding, by_process: Sequence[Sequence[float]], pass_level: float = Plan().pass_level) -> Confirmation:
    """Hold a regression or improvement against log ratios (new over old) from fresh processes, grouped by process.

    Raises:
        ValueError: no process, one without replicates, or a finding that claims no change.
    """
    if not needs_confirmation(finding):
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

    p where that direction was not found; p x 2**-P where it was found and confirmed; 1 where it was found and not confirmed (or not yet).
    It is a valid p-value: below `alarm_level`, P(confirmed and p x 2**-P <= u) <= min(1, u x 2**P) x 2**-P <= u; above, the event
    implies p <= u.
    """
    first = finding.p_faster if direction is VerdictKind.IMPROVEMENT else finding.p_slower
    if finding.kind is not direction:
        return first
    return first * confirmation.p_value if confirmation is not None and confirmation.outcome is ConfirmationOutcome.CONFIRMED else 1.0


def conclude(finding: Finding, confirmation: Confirmation | None) -> Verdict:
    """The verdict on one comparison after its confirmation; a change without one stays undecided."""
    if not needs_confirmation(finding):
        return Verdict(kind=finding.kind, reason=finding.reason, change=finding.change)
    if confirmation is None:
        return Verdict(kind=VerdictKind.UNDECIDED, reason=f"{finding.reason}; not yet confirmed in fresh processes", change=finding.change)
    seen = ", ".join(f"{value - 1:+.2%}" for value in confirmation.estimates)
    share = f"{confirmation.agreeing} of {len(confirmation.estimates)} fresh processes ({seen})"
    kind, words = {
        ConfirmationOutcome.CONFIRMED: (finding.kind, "confirmed by"),
        ConfirmationOutcome.REFUTED: (VerdictKind.PASS, "not repeated, found by"),
        ConfirmationOutcome.UNCLEAR: (VerdictKind.UNDECIDED, "processes disagree, found by"),
    }[confirmation.outcome]
    return Verdict(kind=kind, reason=f"{finding.reason}; {words} {share}", change=finding.change)


def false_alarm_bound(plan: Plan, processes: int = PROCESSES, *, shared_shift: bool = False) -> float:
    """The largest chance that a comparison whose true change is within the margin ends as a confirmed regression.

    `alarm_level` x 2**-P, reached at a change equal to the margin.  With `shared_shift` a process may move all its replicates together, by
    any symmetrically distributed amount: the first finding then has up to an even chance and the bound is 2**-(P + 1).
    """
    first = 0.5 if shared_shift else plan.alarm_level
    return float(first * 0.5**processes)
