"""Change points of thousands of long series at once: seeded binary segmentation of robust scores, with boards as random effects.

`changepoint.divide` compares with random orders of the runs, which takes minutes for a series of a thousand nights.  Here a split is scored
by the difference of the two levels' means over its standard error, and its p-value comes from the known distribution of the largest such
score.  All series are computed together.

* Scores are clipped at three standard deviations, so that a wild night counts no more than a bad one.
* Boards are random effects: a split that separates boards must beat their usual differences, while boards that take turns are compared
  each with itself (generalised least squares).  Series with gaps get the difference of means, and its larger variance.
* The variance is that of neighbouring nights, or of neighbouring weeks where that is larger.

Source: Kovács, Bühlmann, Li & Munk, Biometrika 110 (2023) 249.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .changepoint import SMALLEST_PART, Cut, placed
from .largest_score import p_values_of
from .seeded_intervals import MOST_BOARDS, Codes, Cumulative, Inside, Matrix, intervals, seeded

CLIP = 3.0
"""Scores beyond so many standard deviations are cut.  One night in thirty disturbed by ten deviations then adds 30 % to the variance."""
_WEEK = 7
_CHUNK = 256
"""Series that are computed at once: their sums stay in the processor's cache."""
_MAD = 0.6744897501960817
"""Median of the absolute value of a standard normal variable."""
_FEWEST_PAIRS = 30
"""A variance of fewer pairs of nights is taken of all pairs, or of all series."""
_END_TO_END = 32_768
"""Parts are laid end to end up to so many places: their arrays stay in the processor's cache."""
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
        if len(logs) < 2 * smallest_part or len(distinct) > MOST_BOARDS or not np.isfinite(logs).all():
            p_values, cuts = _best(logs[None], boards, ratio, smallest_part)
            found[number] = float(p_values[0]), int(cuts[0])
            continue
        here = sum(len(starts) * (length - 2 * smallest_part + 1) for starts, length in seeded(len(logs), 2 * smallest_part))
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
        here = [(starts + start, length) for starts, length in seeded(len(logs), 2 * smallest_part)]
        layers += here
        places.append(places[-1] + sum(len(starts) * (length - 2 * smallest_part + 1) for starts, length in here))
    inside = Inside.of_all(layers, smallest_part)
    with np.errstate(invalid="ignore", divide="ignore"):
        (squares,) = Cumulative(np.concatenate(scores, axis=1), None, on_board, ratio).squares(inside)
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
    sums = Cumulative(scores, None if present.all() else present, on_board, ratio)
    with np.errstate(invalid="ignore", divide="ignore"):
        for inside in intervals(high - low, len(scores), smallest_part):
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


def _split(start: int, end: int, cut: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (start, cut), (cut, end)


def _counted(logs: NDArray[np.float64], cuts: Sequence[Cut], smallest_part: int) -> list[Cut]:
    """`cuts` by place among the runs that hold the series, each moved to where its two levels explain the values best."""
    present = np.isfinite(logs)
    before = np.concatenate([[0], np.cumsum(present)])
    return placed(logs[present], [Cut(int(before[cut.index]), cut.p_value) for cut in cuts], smallest_part)
