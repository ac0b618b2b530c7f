"""The steps from a comparison in paired rounds to a verdict: finding, confirmation, noise floor and FDR control, in that order.

`ab` and `calibrate` both call `conclude_all`, so a calibration counts the verdicts that `ab` would give.  A first finding is repeated in
several fresh processes (`stats.confirmation`); every one of them must estimate the change beyond the margin, in the same direction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..schema import CHANGES, Confirmation, ConfirmationOutcome, Finding, Verdict, VerdictKind
from ..stats.confirmation import combined_p
from ..stats.fdr import DEFAULT_RATE
from .fdr_control import adjusted_p_values, unless_significant
from .noise_floor import NO_NOISE, Noise, above_floor

PROCESSES = 5
"""Fresh processes that must agree: the fewest with 2**-P below the default `pass_level`."""

FEWEST_PLACEMENTS = 12
"""Replicates in each of them, or as many as the first finding took if that is more. At sd 0.56 % an estimate from 12 scatters by
0.17 %: a true 1 % lies 3.6 of these beyond a margin of 0.4 %, so all five agree 99.9 % of the time."""


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One paired comparison of changed code, as measured."""

    finding: Finding
    confirmation: Confirmation | None = None
    """None without a confirmation, or before it."""
    noise: Noise = NO_NOISE
    """Noise of A/A pairs of such calls in the same run; without A/A pairs there is no noise floor."""


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one comparison."""

    verdict: Verdict
    adjusted_p: float | None
    """The finding's p-value in its own direction, corrected for all comparisons; None if it claims no change."""


def placements_for(finding: Finding) -> int:
    """Replicates to take in each fresh process: as many as showed the change the first time, so that each can show it again."""
    return max(FEWEST_PLACEMENTS, finding.replicates)


def conclude_all(compared: Sequence[PairedComparison], rate: float = DEFAULT_RATE) -> list[Conclusion]:
    """The verdicts on all comparisons of one run, in their order.

    Regressions and improvements are two families of tests, each controlled at `rate` over all comparisons.

    Raises:
        ValueError: a rate outside (0, 1).
    """
    families = {direction: [combined_p(one.finding, one.confirmation, direction) for one in compared] for direction in CHANGES}
    adjusted = {direction: adjusted_p_values(p_values, rate) for direction, p_values in families.items()}
    found = []
    for place, one in enumerate(compared):
        adjusted_p = adjusted[one.finding.kind][place] if one.finding.claims_change else None
        verdict = above_floor(conclude(one.finding, one.confirmation), one.noise)
        if verdict.kind in CHANGES and adjusted_p is not None:
            verdict = unless_significant(verdict, adjusted_p, comparisons=len(compared), rate=rate)
        found.append(Conclusion(verdict=verdict, adjusted_p=adjusted_p))
    return found


def conclude(finding: Finding, confirmation: Confirmation | None) -> Verdict:
    """The verdict on one comparison after its confirmation; a change without one stays undecided."""
    if not finding.claims_change:
        return Verdict(kind=finding.kind, reason=finding.reason, change=finding.change)
    if confirmation is None:
        return Verdict(kind=VerdictKind.UNDECIDED, reason=f"{finding.reason}; not yet confirmed in fresh processes", change=finding.change)
    seen = ", ".join(f"{100 * (value - 1):+.2f} %" for value in confirmation.estimates)
    share = f"{confirmation.agreeing} of {len(confirmation.estimates)} fresh processes ({seen})"
    kind, words = {
        ConfirmationOutcome.CONFIRMED: (finding.kind, "confirmed by"),
        ConfirmationOutcome.REFUTED: (VerdictKind.PASS, "not repeated, found by"),
        ConfirmationOutcome.UNCLEAR: (VerdictKind.UNDECIDED, "processes disagree, found by"),
    }[confirmation.outcome]
    return Verdict(kind=kind, reason=f"{finding.reason}; {words} {share}", change=finding.change)
