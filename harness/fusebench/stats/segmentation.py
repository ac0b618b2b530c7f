"""Change points of thousands of long series at once: seeded binary segmentation of robust scores, with boards as random effects.

`changepoint.divide` compares with random orders of the runs, which takes minutes for a series of a thousand nights.  Here a split is scored
by the difference of the two levels' means over its standard error, and its p-value comes from the known distribution of the largest such
score.  All series are computed together.

* Scores are clipped at three standard deviations, so that a wild night counts no more than a bad one.
* Boards are random effects: a split that separates boards must beat their usual differences, while boards that take turns are compared
  each with itself (generalised least squares).  Series with gaps get the difference of means, and its larger variance.
* The variance is that of neighbouring nights, or of neighbouring weeks where that is larger.

Sources: Kovács, Bühlmann, Li & Munk, Biometrika 110 (2023) 249 (seeded intervals); James, James & Siegmund, Biometrika 74 (1987) 71 (tail
of the largest score); Siegmund, Sequential Analysis, 1985, chapter 10 (discrete time).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .changepoint import SMALLEST_PART, Cut, placed

Matrix = NDArray[np.float64]
Codes = NDArray[np.int64]

CLIP = 3.0
"""Scores beyond so many standard deviations are cut.  One night in thirty disturbed by ten deviations then adds 30 % to the variance."""
_WEEK = 7
_DECAY = 1 / math.sqrt(2)
"""Each layer of intervals is shorter by this factor: no change is farther than a third of an interval from the middle of one."""
_CHUNK = 256
"""Series that are computed at once: their sums stay in the processor's cache."""
_MAD = 0.6744897501960817
"""Median of the absolute value of a standard normal variable."""
_FEWEST_PAIRS = 30
"""A variance of fewer pairs of nights is taken of all pairs, or of all series."""
_MOST_BOARDS = 16
"""More boards take turns so quickly that comparing each with itself finds no more."""
_END_TO_END = 32_768
"""Parts are laid end to end up to so many places: their arrays stay in the processor's cache."""
_FEW = 24
"""Up to so many intervals of one length are computed one by one, by slices; and up to so many series all at once, by index arrays."""
_TOGETHER = 8192
"""Intervals of several lengths are computed at once up to so many places, times series: the calls of numpy cost more than the places."""
_LENGTHS = 1.1
"""Tails are computed for lengths that grow by this factor."""
_MOST_CUTS = 40
"""Change points of one series: more would be no levels."""


def divide_all(
    values: Matrix, boards: Codes, level_of: Callable[[NDArray[np.float64]], float], *, smallest_part: int = SMALLEST_PART
) -> tuple[list[list[Cut]], NDArray[np.float64]]:
    """The divisions of every series, the most significant first, and the p-value of each series: of "nothing changes".

    Args:
        values: one row per series, one column per run; positive figures such as microseconds, NaN where a run lacks the series.
        boards: code of each run's board; or one row per series, where a run measured its cases on several boards.
        level_of: from the p-values of all series, the level at which divisions count.

    Returns:
        Cuts count places among the runs that hold the series, as `changepoint.divide`.
    """
    logs = np.log(values)
    ratio = board_ratio(logs, boards)
    first, places = _best(logs, boards, ratio, smallest_part)
    level = level_of(first)
    found = [[Cut(int(place), float(p_value))] if p_value <= level else [] for p_value, place in zip(first, places, strict=True)]
    tasks = [(row, part) for row, cuts in enumerate(found) if cuts for part in _split(0, logs.shape[1], cuts[0].index)]
    while tasks:
        groups: dict[tuple[int, int], list[int]] = {}
        for row, part in tasks:
            groups.setdefault(part, []).append(row)
        answers: dict[tuple[int, tuple[int, int]], tuple[float, int]] = {}
        for part, rows in groups.items():
            if len(rows) > 1:
                p_values, places = _best(logs[rows, slice(*part)], _of_rows(boards, rows)[..., slice(*part)], ratio, smallest_part)
                answers |= zip([(row, part) for row in rows], zip(p_values.tolist(), places.tolist(), strict=True), strict=True)
        alone = [(row, part) for row, part in tasks if (row, part) not in answers]
        parts = [(logs[row, slice(*part)], _of_rows(boards, row)[slice(*part)]) for row, part in alone]
        answers |= zip(alone, _best_of_parts(parts, ratio, smallest_part), strict=True)
        tasks = []
        for (start, end), rows in groups.items():
            for row in rows:
                p_value, place = answers[row, (start, end)]
                if p_value <= level and len(found[row]) < _MOST_CUTS:
                    found[row].append(Cut(start + place, p_value))
                    tasks += [(row, part) for part in _split(start, end, start + place) if part[1] - part[0] >= 2 * smallest_part]
    return [_counted(logs[row], cuts, smallest_part) if cuts else [] for row, cuts in enumerate(found)], first


class Level:
    """Benjamini and Hochberg's level: `rate` times the share of the series that it selects."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, p_values: NDArray[np.float64]) -> float:
        """The level for these p-values; that of one selected series where none is."""
        ordered = np.sort(p_values)
        fitting = np.nonzero(ordered <= self.rate * np.arange(1, len(ordered) + 1) / max(1, len(ordered)))[0]
        return self.rate * (int(fitting[-1]) + 1 if len(fitting) else 1) / max(1, len(ordered))


def board_ratio(logs: Matrix, boards: Codes) -> float:
    """Variance between boards over the variance of a night, over all series: from neighbouring nights on one board and on two.

    0 where all runs are of one board, or no two neighbouring runs hold the same series.
    """
    steps = np.abs(np.diff(logs, axis=1))
    other = np.broadcast_to(boards[..., 1:] != boards[..., :-1], steps.shape)
    if not other.any():
        return 0.0
    few = (~other).sum(axis=1) < _FEWEST_PAIRS
    scale = _row_median(np.where(other & ~few[:, None], np.nan, steps))
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = (steps / scale[:, None])[other]
    relative = relative[np.isfinite(relative)]
    return max(0.0, float(np.median(relative)) ** 2 - 1.0) if len(relative) else 0.0


def p_values_of(scores: NDArray[np.float64], runs: int, smallest_part: int = SMALLEST_PART) -> NDArray[np.float64]:
    """Upper bound on the probability that the largest score in `runs` runs without a change is at least each of `scores`.

    The variance in a score is known to two thirds of the runs' degrees of freedom, those of a variance from differences; Wallace's
    approximation (Ann. Math. Stat. 30 (1959) 1121) makes a normal score of it.
    """
    degrees = max(1.0, 2 / 3 * (runs - 1))
    normal = np.sqrt(degrees * np.log1p(scores**2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    # Rounded up to one of a few lengths: more runs have a longer tail.
    rounded = max(2 * smallest_part, math.ceil(_LENGTHS ** math.ceil(math.log(max(2, runs), _LENGTHS))))
    found: NDArray[np.float64] = np.where(scores > 0, np.minimum(1.0, np.exp(np.interp(normal, *_tail(rounded, smallest_part)))), 1.0)
    return found


def _of_rows(boards: Codes, rows: Any) -> Codes:
    """The boards of a series, or of some."""
    return boards if boards.ndim == 1 else boards[rows]


def _best(logs: Matrix, boards: Codes, ratio: float, smallest_part: int) -> tuple[NDArray[np.float64], Codes]:
    """P-value and place of the best division of every row."""
    p_values, places = np.ones(len(logs)), np.zeros(len(logs), dtype=np.int64)
    if boards.ndim > 1:  # series with the same boards, such as those of one case, are computed together
        patterns, members = np.unique(boards, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows = np.nonzero(members.ravel() == number)[0]
            p_values[rows], places[rows] = _best(logs[rows], pattern, ratio, smallest_part)
        return p_values, places
    for start in range(0, len(logs), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        scores, places[chunk] = _scan(logs[chunk], boards, ratio, smallest_part)
        counts = np.isfinite(logs[chunk]).sum(axis=1)
        for count in set(counts.tolist()):
            p_values[chunk][counts == count] = p_values_of(scores[counts == count], count, smallest_part)
    return p_values, places


def _best_of_parts(parts: Sequence[tuple[NDArray[np.float64], Codes]], ratio: float, smallest_part: int) -> list[tuple[float, int]]:
    """As `_best`, for single rows (times, boards) of any length: numpy's calls would take longer on each than the computation.

    The parts are laid end to end, as one series whose intervals stay within a part.
    """
    found: dict[int, tuple[float, int]] = {}
    chunk, places = list[int](), 0
    distinct = np.unique(np.concatenate([boards for _, boards in parts])) if parts else np.zeros(0, dtype=np.int64)
    for number, (logs, boards) in enumerate(parts):
        if len(logs) < 2 * smallest_part or len(distinct) > _MOST_BOARDS or not np.isfinite(logs).all():
            p_values, cuts = _best(logs[None], boards, ratio, smallest_part)
            found[number] = float(p_values[0]), int(cuts[0])
            continue
        here = sum(len(starts) * (length - 2 * smallest_part + 1) for starts, length in _seeded(len(logs), 2 * smallest_part))
        if chunk and places + here > _END_TO_END:
            found |= zip(chunk, _best_end_to_end([parts[one] for one in chunk], distinct, ratio, smallest_part), strict=True)
            chunk, places = [], 0
        chunk.append(number)
        places += here
    if chunk:
        found |= zip(chunk, _best_end_to_end([parts[one] for one in chunk], distinct, ratio, smallest_part), strict=True)
    return [found[number] for number in range(len(parts))]


def _best_end_to_end(
    parts: Sequence[tuple[NDArray[np.float64], Codes]], distinct: Codes, ratio: float, smallest_part: int
) -> list[tuple[float, int]]:
    """`_best_of_parts` for parts without gaps; `distinct` are the codes of all boards."""
    on_board = distinct[:, None] == np.concatenate([boards for _, boards in parts])[None, :]
    scores, variances, layers, ends = list[Matrix](), list[float](), list[tuple[Codes, int]](), [0]
    places = [0]
    for logs, boards in parts:
        start = ends[-1]
        ends.append(start + len(logs))
        one, variance = _scores(logs[None], np.ones((1, len(logs)), dtype=bool), boards, on_board[:, start : ends[-1]])
        scores.append(one)
        variances.append(float(variance[0]))
        here = [(starts + start, length) for starts, length in _seeded(len(logs), 2 * smallest_part)]
        layers += here
        places.append(places[-1] + sum(len(starts) * (length - 2 * smallest_part + 1) for starts, length in here))
    inside = _Inside.of_all(layers, smallest_part)
    with np.errstate(invalid="ignore", divide="ignore"):
        (squares,) = _Cumulative(np.concatenate(scores, axis=1), None, on_board, ratio).squares(inside)
    found = []
    for (logs, _), spread, start, first, last in zip(parts, variances, ends[:-1], places[:-1], places[1:], strict=True):
        chosen = first + int(np.argmax(squares[first:last]))
        score = np.sqrt(squares[chosen : chosen + 1] / spread)
        found.append((float(p_values_of(score, len(logs), smallest_part)[0]), int(inside.places[chosen]) - start))
    return found


def _scan(logs: Matrix, boards: Codes, ratio: float, smallest_part: int) -> tuple[NDArray[np.float64], Codes]:
    present = np.isfinite(logs)
    used = np.nonzero(present.any(axis=0))[0]
    best, places = np.zeros(len(logs)), np.zeros(len(logs), dtype=np.int64)
    if len(used) < 2 * smallest_part:
        return best, places
    low, high = int(used[0]), int(used[-1]) + 1
    logs, present, boards = logs[:, low:high], present[:, low:high], boards[low:high]
    on_board = np.unique(boards)[:, None] == boards[None, :]
    scores, variance = _scores(logs, present, boards, on_board)
    sums = _Cumulative(scores, None if present.all() else present, on_board, ratio)
    with np.errstate(invalid="ignore", divide="ignore"):
        for inside in _intervals(high - low, len(scores), smallest_part):
            squares = sums.squares(inside)
            if sums.counts is not None:
                few = np.minimum(inside.since(sums.counts), inside.until(sums.counts)) < smallest_part
                squares[few] = 0.0
            flat = squares.reshape(len(squares), -1)
            chosen = np.argmax(flat, axis=1)
            found = flat[np.arange(len(flat)), chosen]
            better = found > best
            best[better] = found[better]
            places[better] = low + inside.places[chosen[better]]
    return np.sqrt(best / variance), places


class _Cumulative:
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
        if present is None and ratio > 0 and 1 < len(on_board) <= _MOST_BOARDS:
            self.by_board = _summed(scores[:, None, :] * on_board)

    def squares(self, inside: _Inside) -> Matrix:
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

    def _with_boards(self, inside: _Inside, by_board: Matrix) -> Matrix:
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


def _intervals(runs: int, series: int, smallest_part: int) -> Iterator[_Inside]:
    """The places inside the seeded intervals of `runs` places, the longest first, in parts that are quick to compute for so many series."""
    short: list[tuple[Codes, int]] = []
    places = 0
    for starts, length in _seeded(runs, 2 * smallest_part):
        here = len(starts) * (length - 2 * smallest_part + 1)
        if series * here <= _TOGETHER:
            if places + series * here > _TOGETHER:
                yield _Inside.of_all(short, smallest_part)
                short, places = [], 0
            short.append((starts, length))
            places += series * here
            continue
        # Slices are several times as fast as index arrays, and there are few of the long intervals; for few series the calls cost more.
        for some in [starts] if len(starts) > _FEW or series <= _FEW else np.split(starts, len(starts)):
            yield _Inside.of(some, length, smallest_part)
    if short:
        yield _Inside.of_all(short, smallest_part)


class _Inside:
    """The places inside some intervals, where each may be cut."""

    def __init__(self, cut: Any, first: Any, last: Any, places: Codes, counts: Codes | None = None) -> None:
        self._cut, self._first, self._last, self._counts = cut, first, last, counts
        self.places = places

    @classmethod
    def of(cls, starts: Codes, length: int, smallest_part: int) -> _Inside:
        """Of intervals of one length, which start at `starts`; one interval is read by slices."""
        cut = starts[:, None] + np.arange(smallest_part, length - smallest_part + 1)
        if len(starts) > 1:
            return cls(cut, starts[:, None], starts[:, None] + length, cut.ravel())
        start = int(starts[0])
        inside = slice(start + smallest_part, start + length - smallest_part + 1)
        return cls(inside, slice(start, start + 1), slice(start + length, start + length + 1), cut.ravel())

    @classmethod
    def of_all(cls, layers: Sequence[tuple[Codes, int]], smallest_part: int) -> _Inside:
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


def _scores(logs: Matrix, present: NDArray[np.bool_], boards: Codes, on_board: NDArray[np.bool_]) -> tuple[Matrix, NDArray[np.float64]]:
    """Clipped scores, 0 where absent, and the variance of a night's score by row; `on_board`: by board and run."""
    steps = np.diff(logs, axis=1)
    scale = _row_median(np.abs(steps)) / _MAD / math.sqrt(2)
    centre = _row_median(logs)
    least = np.finfo(np.float64).eps * 8  # equal times of every night, as a coarse clock gives them
    scores = np.where(present, np.clip((logs - centre[:, None]) / np.maximum(scale, least)[:, None], -CLIP, CLIP), 0.0)
    both = present[:, 1:] & present[:, :-1]
    same = both & (boards[1:] == boards[:-1])
    pairs = np.where((same.sum(axis=1) >= _FEWEST_PAIRS)[:, None], same, both)
    night = (np.diff(scores, axis=1) ** 2 * pairs).sum(axis=1) / np.maximum(1, pairs.sum(axis=1)) / 2
    weeks = scores.shape[1] // _WEEK
    if weeks >= _FEWEST_PAIRS and bool(present.all()):
        # Each board's own level is no drift.
        ones = on_board.astype(np.float64)
        levelled = scores - (scores @ ones.T / np.maximum(1.0, ones.sum(axis=1))) @ ones
        means = levelled[:, : weeks * _WEEK].reshape(len(scores), weeks, _WEEK).mean(axis=2)
        # The median of squared differences, because a level's first week would dominate their mean.
        week = (_row_median(np.abs(np.diff(means, axis=1))) / _MAD) ** 2 / 2 * _WEEK
        night = np.maximum(night, week)
    return scores, np.maximum(night, 0.25)


def _row_median(values: Matrix) -> NDArray[np.float64]:
    """The median of each row without its NaNs; 0 for a row without values."""
    counts = np.isfinite(values).sum(axis=1)
    ordered = np.sort(values, axis=1)
    rows = np.arange(len(values))
    low, high = np.maximum(0, (counts - 1) // 2), np.minimum(counts // 2, max(0, values.shape[1] - 1))
    if values.shape[1] == 0:
        return np.zeros(len(values))
    return np.where(counts > 0, (ordered[rows, low] + ordered[rows, high]) / 2, 0.0)


@functools.cache
def _seeded(runs: int, shortest: int) -> tuple[tuple[Codes, int], ...]:
    """The seeded intervals of `runs` places by layer: their starts, and their common length, the longest first."""
    found = []
    length = runs
    while length >= shortest:
        count = 1 if length == runs else 2 * math.ceil(runs / length) - 1
        found.append((np.round(np.linspace(0, runs - length, count)).astype(np.int64), length))
        length = min(length - 1, math.ceil(length * _DECAY))
    return tuple(found)


@functools.cache
def _tail(runs: int, smallest_part: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores, and the logarithm of the tail probability at each, summed over the seeded intervals of `runs` runs."""
    grid = np.linspace(1.0, 20.0, 100)
    total = np.zeros_like(grid)
    for starts, length in _seeded(runs, 2 * smallest_part):
        place = np.arange(smallest_part, length - smallest_part + 1) / length
        weight = length * place * (1 - place)
        half = (len(weight) + 1) // 2  # a place weighs as much as its mirror image
        times = np.full(half, 2.0)
        times[half - 1] = 2.0 - len(weight) % 2
        weight = weight[:half]
        total += len(starts) * (_nu(grid[:, None] / np.sqrt(weight)) @ (times / weight))
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    return grid, np.log(np.maximum(grid * density * total, 1e-300))


def _nu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Siegmund's correction for discrete time, as the approximation of Siegmund & Yakir (2007), to 1e-7.

    Read from a table, because scipy's normal distribution takes longer to import than a history of one kernel.
    """
    found: NDArray[np.float64] = np.interp(x, *_nu_table())
    return found


@functools.cache
def _nu_table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = np.linspace(1e-3, 20.0, 20_000)
    half = x / 2
    normal = 0.5 + 0.5 * np.array([math.erf(one) for one in (half / math.sqrt(2)).tolist()])
    return x, (2 / x) * (normal - 0.5) / (half * normal + np.exp(-(half**2) / 2) / math.sqrt(2 * math.pi))


def _split(start: int, end: int, cut: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (start, cut), (cut, end)


def _counted(logs: NDArray[np.float64], cuts: Sequence[Cut], smallest_part: int) -> list[Cut]:
    """`cuts` by place among the runs that hold the series, each moved to where its two levels explain the values best."""
    present = np.isfinite(logs)
    before = np.concatenate([[0], np.cumsum(present)])
    return placed(logs[present], [Cut(int(before[cut.index]), cut.p_value) for cut in cuts], smallest_part)
