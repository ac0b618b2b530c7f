"""Results of repeated comparisons of two arms: a finding, its confirmation in fresh processes, and A/A pairs."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .results import CHANGES, Estimate, VerdictKind


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion from the replicates so far."""

    kind: VerdictKind
    """`regression`, `improvement`, `pass` or `undecided`."""
    change: Estimate
    """New time over old: Hodges-Lehmann estimate and repeated confidence interval, at the level that decided."""
    p_slower: float
    """P-value of "no slower than the margin", over all looks so far."""
    p_faster: float
    """P-value of "no faster than the margin"."""
    margin: float
    replicates: int
    """Number of replicates behind the finding, up to the deciding look or the last look taken."""
    next_look: int | None
    """Number of replicates at which to look again; None if the decision is taken or the plan is at its end."""
    reason: str

    @property
    def claims_change(self) -> bool:
        """Whether it claims a change, which fresh processes must then confirm."""
        return self.kind in CHANGES


class ConfirmationOutcome(StrEnum):
    """The fresh processes' answer to the first finding."""

    CONFIRMED = "confirmed"
    """All of them find the same change."""
    REFUTED = "refuted"
    """All of them find a change inside the margin, and there are enough processes for that conclusion."""
    UNCLEAR = "unclear"


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The fresh processes' estimates and their common outcome."""

    outcome: ConfirmationOutcome
    estimates: tuple[float, ...]
    """New time over old, one per fresh process."""
    agreeing: int
    """Processes whose estimate lies beyond the margin in the finding's direction."""

    @property
    def p_value(self) -> float:
        """P-value of "no change beyond the margin" from the fresh processes alone: 2**-P where all agree, else 1."""
        return 0.5 ** len(self.estimates) if self.outcome is ConfirmationOutcome.CONFIRMED else 1.0


class AAPair(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a kernel with itself."""

    case: str
    kernel: str
    time_us: float
    change: Estimate
    kind: VerdictKind
    """The verdict that the times alone would give."""
    launches: int = 0
    """Launches of one call; 0 when the timer sees none, and in older records."""
