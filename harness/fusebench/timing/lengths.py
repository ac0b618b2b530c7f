"""Measurements whose length is known before they begin: of all arms alike, or of pairs that have a number of replicates of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import UsageError
from ..schema import Sample
from .pairs import Pair


class FixedLength:
    """The same number of replicates for every arm."""

    def __init__(self, replicates: int) -> None:
        self.replicates = replicates
        self._taken = 0

    @property
    def over(self) -> bool:
        return self._taken >= self.replicates

    def idle_arms(self) -> set[str]:
        """None: every speedup is relative to the baseline of its own replicate."""
        return set()

    def add(self, samples: Sequence[Sample]) -> None:
        """Take in one replicate."""
        self._taken += 1


class Lengths(FixedLength):
    """Pairs that have a number of replicates of their own; it is over with the longest."""

    def __init__(self, pairs: Sequence[Pair], lengths: Mapping[str, int]) -> None:
        """`lengths`: replicates of every pair, by its name.

        Raises:
            UsageError: a pair has no length, or one below 1.
        """
        wrong = [pair.name for pair in pairs if lengths.get(pair.name, 0) < 1]
        if wrong or not pairs:
            raise UsageError(f"found lengths {dict(lengths)!r}; expected 1 or more replicates for each of the pairs {wrong or 'measured'}")
        super().__init__(max(lengths[pair.name] for pair in pairs))
        self._pairs, self._lengths = tuple(pairs), lengths

    def idle_arms(self) -> set[str]:
        """Arms that only pairs name which have all their replicates."""
        wanted = {arm for pair in self._pairs if self._taken < self._lengths[pair.name] for arm in (pair.new, pair.old)}
        return {arm for pair in self._pairs for arm in (pair.new, pair.old)} - wanted
