"""A permutation test: the probability of a split as good as the best one in a series without change, from random orders.

On ranks every series of one length has the same distribution, so one list of random orders per length serves all series of a history. Their
p-values can be as small as a correction for hundreds of series needs, at the cost of one series.

Source of the early stop: Besag & Clifford, Biometrika 78 (1991) 301.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from .energy import best_split
from .signed_rank import Floats

ENOUGH = 100
"""Stop after this many orders that score as high. The p-value then has a relative error of a tenth. All series of a length share the orders
and hence this error; a lower number would make it larger."""

_FIRST_LOOK = 256
_ROUNDING = 1e-9
"""Two scores that differ by less than this share count as equal, which counts against the finding."""


class RandomOrders:
    """The significance test of `changepoint`: shuffles ranks within each part, and compares the best split of all of them.

    The p-value is (1 + orders that score as high) / (1 + orders tried), or `ENOUGH` over the number of orders tried when it stops early.
    Both are valid for any number of orders. The lists grow with use and are kept, so use one instance for many series.
    """

    def __init__(self, orders: int = 1999, seed: int = 0) -> None:
        """Try at most `orders` orders: 1999 resolve p to 0.0005. The same seed gives the same answer for the same series, independent of
        earlier calls.

        Raises:
            ValueError: `orders` is below 1.
        """
        if orders < 1:
            raise ValueError(f"orders={orders!r}: expected at least one")
        self.orders = orders
        self._seed = seed
        self._lists: dict[tuple[int, int, int], tuple[np.random.Generator, list[float]]] = {}

    def at_most(self, orders: int) -> RandomOrders:
        """The same test with fewer orders, on the same lists."""
        other = RandomOrders(min(orders, self.orders), self._seed)
        other._lists = self._lists
        return other

    def __call__(self, parts: Sequence[Floats], statistic: float, smallest: int) -> float:
        """P-value of "no part changes within", where the best split of all `parts` scored `statistic`."""
        limit = statistic - abs(statistic) * _ROUNDING
        seen: Counter[int] = Counter()
        keys = []
        for length in (len(part) for part in parts):
            if length >= 2 * smallest:
                keys.append((length, seen[length], smallest))  # parts of one length need orders of their own
                seen[length] += 1
        as_high = tried = 0
        while tried < self.orders:
            upto = min(self.orders, max(_FIRST_LOOK, 2 * tried))
            best = np.max([self._scores(key, upto)[tried:upto] for key in keys], axis=0)
            hits = np.flatnonzero(best >= limit)
            if as_high + len(hits) >= ENOUGH:
                return float(ENOUGH / (tried + int(hits[ENOUGH - as_high - 1]) + 1))
            as_high, tried = as_high + len(hits), upto
        return (1 + as_high) / (1 + self.orders)

    def _scores(self, key: tuple[int, int, int], upto: int) -> list[float]:
        """Best scores of the first `upto` random orders; `key` is (ranks of the part, its number among parts of that length, smallest
        part)."""
        length, _, smallest = key
        if key not in self._lists:
            self._lists[key] = (np.random.default_rng([self._seed, *key]), [])
        generator, scores = self._lists[key]
        while len(scores) < upto:
            scores.append(best_split(generator.permutation(length) / length, smallest)[0])
        return scores
