"""Seeded intervals, and the score of every cut in each of them.

Source: Kovács, Bühlmann, Li & Munk, Biometrika 110 (2023) 249.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Codes = NDArray[np.int64]

_DECAY = 1 / math.sqrt(2)
"""Each layer of intervals is shorter by this factor: no change is farther than a third of an interval from the middle of one."""
_FEW = 24
"""Up to so many intervals of one length are computed one by one, by slices; and up to so many series all at once, by index arrays."""
_TOGETHER = 8192
"""Intervals of several lengths are computed at once up to so many places, times series: the calls of numpy cost more than the places."""
MOST_BOARDS = 16
"""More boards take turns so quickly that comparing each with itself finds no more."""


class Cumulative:
    """Scores as cumulative sums, from which the score of any cut in any interval follows."""

    def __init__(self, scores: Matrix, present: NDArray[np.bool_] | None, on_board: NDArray[np.bool_], ratio: float) -> None:
        """Args:
        scores: by row and run.
        present: where a row holds a run; None where each holds every one.
        on_board: by board and run.
        ratio: variance between boards over that of a night.
        """
        self.sums = _summed(scores)
        self.held = _summed(on_board)
        """Runs on each board before each place."""
        self.counts = None if present is None else _summed(present)
        self.ratio = ratio
        self.by_board: Matrix | None = None
        if present is None and ratio > 0 and 1 < len(on_board) <= MOST_BOARDS:
            self.by_board = _summed(scores[:, None, :] * on_board)

    def squares(self, inside: Inside) -> Matrix:
        """Squared scores, by row, of all cuts."""
        if self.by_board is not None:
            return self._with_boards(inside, self.by_board)
        counts = self.counts if self.counts is not None else np.arange(self.sums.shape[1], dtype=np.float64)[None]
        before, all_before = inside.since(self.sums), inside.since(counts)
        after, all_after = inside.until(self.sums), inside.until(counts)
        spread = 1.0 / all_before + 1.0 / all_after
        if self.ratio > 0:
            here, there = inside.since(self.held), inside.until(self.held)
            spread = spread + self.ratio * ((here / here.sum(axis=0) - there / there.sum(axis=0)) ** 2).sum(axis=0)
        found: Matrix = (before / all_before - after / all_after) ** 2 / spread
        return found

    def _with_boards(self, inside: Inside, by_board: Matrix) -> Matrix:
        """The same by generalised least squares: a step, and a random effect of every board.

        So nights after a cut are compared with those before it on the same boards, as far as there are any.
        The score is linear in the sums after the cut and in those of each board: their weights are the same in every row.
        """
        runs = inside.whole(self.held)
        left = 1.0 / (1.0 + self.ratio * runs)
        level = (left * runs).sum(axis=0)
        on_boards = inside.whole(by_board)
        mean = np.einsum("rb...,b...->r...", on_boards, left)
        weights = on_boards * (self.ratio * level * left) + mean[:, None] * left
        after = inside.until(self.held)  # runs on each board from each cut on
        both = inside.weighted(left[None], after)[0]
        step = after.sum(axis=0) - self.ratio * inside.weighted(left[None], after * after)[0]
        level = inside.at_places(level)
        squared = level * (level * step - both**2)
        unit = np.where(squared > 0, 1.0 / np.sqrt(squared), 0.0)
        after *= unit
        found = inside.until(self.sums)
        found *= level * unit
        found -= inside.weighted(weights, after)
        return np.square(found, out=found)


def _summed(values: NDArray[Any]) -> Matrix:
    """Cumulative sums along the last axis, from 0."""
    found = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=found[..., 1:])
    return found


def intervals(runs: int, series: int, smallest_part: int) -> Iterator[Inside]:
    """The places inside the seeded intervals of `runs` places, the longest first, in parts that are quick to compute for so many series."""
    short: list[tuple[Codes, int]] = []
    places = 0
    for starts, length in seeded(runs, 2 * smallest_part):
        here = len(starts) * (length - 2 * smallest_part + 1)
        if series * here <= _TOGETHER:
            if places + series * here > _TOGETHER:
                yield Inside.of_all(short, smallest_part)
                short, places = [], 0
            short.append((starts, length))
            places += series * here
            continue
        # Slices are several times as fast as index arrays, and there are few of the long intervals; for few series the calls cost more.
        for some in [starts] if len(starts) > _FEW or series <= _FEW else np.split(starts, len(starts)):
            yield Inside.of(some, length, smallest_part)
    if short:
        yield Inside.of_all(short, smallest_part)


class Inside:
    """The places inside some intervals, where each may be cut."""

    def __init__(self, cut: Any, first: Any, last: Any, places: Codes, counts: Codes | None = None) -> None:
        self._cut, self._first, self._last, self._counts = cut, first, last, counts
        self.places = places

    @classmethod
    def of(cls, starts: Codes, length: int, smallest_part: int) -> Inside:
        """Of intervals of one length, which start at `starts`; one interval is read by slices."""
        cut = starts[:, None] + np.arange(smallest_part, length - smallest_part + 1)
        if len(starts) > 1:
            return cls(cut, starts[:, None], starts[:, None] + length, cut.ravel())
        start = int(starts[0])
        inside = slice(start + smallest_part, start + length - smallest_part + 1)
        return cls(inside, slice(start, start + 1), slice(start + length, start + length + 1), cut.ravel())

    @classmethod
    def of_all(cls, layers: Sequence[tuple[Codes, int]], smallest_part: int) -> Inside:
        """Of all intervals in `layers` (starts, and common length), on one axis of places."""
        starts = np.concatenate([starts for starts, _ in layers])
        lengths = np.repeat([length for _, length in layers], [len(starts) for starts, _ in layers])
        counts = lengths - 2 * smallest_part + 1
        cut = np.arange(int(counts.sum())) + np.repeat(starts + smallest_part - np.cumsum(counts) + counts, counts)
        return cls(cut, starts, starts + lengths, cut, counts)

    def since(self, sums: Matrix) -> Matrix:
        """From the start of each interval to each place in it; `sums` are cumulative, by row."""
        found: Matrix = self._at_cuts(sums) - self.at_places(sums[:, self._first])
        return found

    def whole(self, sums: Matrix) -> Matrix:
        """Over each interval; the axes of intervals are the last ones, and `at_places` makes axes of places of them."""
        found: Matrix = sums[..., self._last] - sums[..., self._first]
        return found

    def until(self, sums: Matrix) -> Matrix:
        """From each place to the end of its interval."""
        found: Matrix = self.at_places(sums[:, self._last]) - self._at_cuts(sums)
        return found

    def weighted(self, weights: Matrix, values: Matrix) -> Matrix:
        """Sums of `values` (boards, places) with the `weights` (rows, boards, intervals) of each place's interval, by row and place."""
        found: Matrix
        if self._counts is not None:
            found = np.einsum("rbp,bp->rp", self.at_places(weights), values)
        elif values.ndim == 2:
            found = weights[:, :, 0] @ values
        else:
            found = np.matmul(weights[..., 0].transpose(2, 0, 1), values.transpose(1, 0, 2)).transpose(1, 0, 2)
        return found

    def _at_cuts(self, sums: Matrix) -> Matrix:
        found: Matrix = sums[:, self._cut] if isinstance(self._cut, slice) else sums.take(self._cut, axis=1)
        return found

    def at_places(self, values: Matrix) -> Matrix:
        """Values by interval as values by place, for numpy to broadcast."""
        return values if self._counts is None else np.repeat(values, self._counts, axis=-1)


@functools.cache
def seeded(runs: int, shortest: int) -> tuple[tuple[Codes, int], ...]:
    """The seeded intervals of `runs` places by layer: their starts, and their common length, the longest first."""
    found = []
    length = runs
    while length >= shortest:
        count = 1 if length == runs else 2 * math.ceil(runs / length) - 1
        found.append((np.round(np.linspace(0, runs - length, count)).astype(np.int64), length))
        length = min(length - 1, math.ceil(length * _DECAY))
    return tuple(found)
