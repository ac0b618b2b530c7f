"""How likely a split as good as the best one is in a series without change: the best splits of random orders.

On ranks every series of one length has the same distribution, so that one list of random orders per length serves all series of a
history: their p-values can be as small as a correction for hundreds of series needs, at the cost of one series.

Source of the early stop: Besag & Clifford, Biometrika 78 (1991) 301.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from .energy import best_split
from .signed_rank import Floats

ENOUGH = 100
"""Orders that score as high, after which no more are tried.  The p-value is then known to a tenth of itself; since all series of a length
share the orders, they share its error, which a lower number would let grow."""

_FIRST_LOOK = 256
_ROUNDING = 1e-9
"""Two orders whose scores differ by less than this share are taken for equal, which counts against the finding."""


class RandomOrders:
    """The significance test of `changepoint`: shuffles ranks within each part, and compares the best split of all of them.

    The p-value is (1 + orders that score as high) / (1 + orders tried), or `ENOUGH` over the orders that it took to find so many; both
    are valid for any number of orders.  The lists grow with use and are kept, so one instance is meant for many series.
    """

    def __init__(self, orders: int = 1999, seed: int = 0) -> None:
        """At most `orders` are tried: 1999 resolve p to 0.0005.  The same seed gives the same answer to the same series, whatever was
        asked before.

        Raises:
            ValueError: no order.
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
        """Best splits of the first `upto` random orders of so many ranks."""
        length, _, smallest = key
        if key not in self._lists:
            self._lists[key] = (np.random.default_rng([self._seed, *key]), [])
        generator, scores = self._lists[key]
        while len(scores) < upto:
            scores.append(best_split(generator.permutation(length) / length, smallest)[0])
        return scores
