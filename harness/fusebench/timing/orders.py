"""Orders of arms within rounds, balanced so that no arm profits from its place or its predecessor.

Williams designs (E. J. Williams, 1949, "Experimental designs balanced for the estimation of residual effects of treatments"): a
Latin square in which every arm follows every other arm equally often.  One square does for an even number of arms, a square and
its mirror for an odd one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def williams_design(arms: int) -> list[list[int]]:
    """Rows of a balanced design: `arms` rows for an even number, twice that for an odd one (a single row for one arm)."""
    if arms < 1:
        raise ValueError(f"a round needs at least one arm, got {arms}")
    # 0, 1, n-1, 2, n-2, …: successive differences are all distinct modulo n.
    first = [0] + [(step + 1) // 2 if step % 2 else arms - step // 2 for step in range(1, arms)]
    square = [[(entry + shift) % arms for entry in first] for shift in range(arms)]
    return square if arms % 2 == 0 or arms == 1 else square + [row[::-1] for row in square]


def balanced_rounds(arms: Sequence[T], rounds: int, rng: random.Random) -> list[list[T]]:
    """`rounds` orders of `arms`: whole Williams designs with freshly shuffled labels and rows, the last one cut short."""
    orders: list[list[T]] = []
    while len(orders) < rounds:
        labels = list(arms)
        rng.shuffle(labels)
        rows = williams_design(len(labels))
        rng.shuffle(rows)
        orders += [[labels[index] for index in row] for row in rows]
    return orders[:rounds]
