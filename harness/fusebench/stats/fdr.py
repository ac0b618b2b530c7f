"""False-discovery-rate control: select the significant findings among tens or hundreds of comparisons, with matching intervals.

The level of one comparison does not bound the worst of a hundred. Benjamini and Hochberg's rule keeps the expected share of false findings
among the selected ones at `rate`. Yekutieli's factor, about ln m, makes that hold under any dependence between cases (one GPU, one
afternoon). The intervals of selected findings must be wider than unselected ones: with R of m selected, level 1 - R x rate / m keeps the
expected share of selected intervals that miss at `rate` (false coverage-statement rate).

Sources: Benjamini & Hochberg, J. R. Statist. Soc. B 57 (1995) 289; Benjamini & Yekutieli, Ann. Statist. 29 (2001) 1165, and
J. Amer. Statist. Assoc. 100 (2005) 71 for the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

DEFAULT_RATE = 0.05
"""Expected share of false findings among the regressions of a run. A finding confirmed in five fresh processes has p <= 1.6e-4, significant
even alone among 320 comparisons. A larger suite tightens the first stage by `first_level`."""


class Dependence(StrEnum):
    """Assumed dependence between the comparisons."""

    POSITIVE = "positive"
    """Independent or positively dependent (no cause makes one look slow and another fast): Benjamini-Hochberg."""
    ANY = "any"
    """Nothing: Benjamini-Yekutieli."""


class FdrSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The significant comparisons after FDR control."""

    adjusted: tuple[float, ...]
    """Adjusted p-values, in the given order: the smallest rate at which each would be significant."""
    stands: tuple[bool, ...]
    rate: float

    @property
    def count(self) -> int:
        """Number of significant comparisons."""
        return sum(self.stands)

    @property
    def tail(self) -> float:
        """One-sided error of the interval to show for a significant one-sided finding: R x rate / m; `rate` if none is significant."""
        return self.rate * (self.count / len(self.stands) if self.count else 1.0)


def select(p_values: Sequence[float], rate: float = DEFAULT_RATE, dependence: Dependence = Dependence.POSITIVE) -> FdrSelection:
    """Apply FDR control to the p-values of all comparisons made, including comparisons without any sign of a change.

    Raises:
        ValueError: a p-value outside [0, 1], or a rate outside (0, 1).
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate={rate!r}: expected a share between 0 and 1")
    for place, value in enumerate(p_values):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"p-value {place} of {len(p_values)} is {value!r}; expected one between 0 and 1")
    adjusted = _adjusted(p_values, dependence)
    return FdrSelection(adjusted=adjusted, stands=tuple(value <= rate for value in adjusted), rate=rate)


def first_level(comparisons: int, processes: int, rate: float = DEFAULT_RATE, most: float = 0.005) -> float:
    """The `alarm_level` at which every finding that `processes` fresh processes confirm is significant among `comparisons` comparisons:
    rate x 2**processes / comparisons, and at most `most`.

    Raises:
        ValueError: fewer than one comparison, or a negative number of processes.
    """
    if comparisons < 1 or processes < 0:
        raise ValueError(f"comparisons={comparisons!r}, processes={processes!r}: expected at least one comparison, and no negative number")
    return min(most, rate * 2.0**processes / comparisons)


def _adjusted(p_values: Sequence[float], dependence: Dependence) -> tuple[float, ...]:
    # scipy.stats.false_discovery_control does the same and takes a second to import, which `gate` does not have.
    count = len(p_values)
    factor = math.fsum(1 / rank for rank in range(1, count + 1)) if dependence is Dependence.ANY else 1.0
    adjusted = [1.0] * count
    least = 1.0
    for rank, place in reversed(list(enumerate(sorted(range(count), key=p_values.__getitem__), start=1))):
        least = min(least, p_values[place] * count / rank * factor)
        adjusted[place] = least
    return tuple(adjusted)
