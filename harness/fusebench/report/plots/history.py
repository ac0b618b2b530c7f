"""Pictures of a history: one panel per kernel and case, every run a dot, every level a line, every change point marked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ...verdict.history.series import Figure
from ...verdict.history.shifts import Shift, Track
from .. import escape
from ..history import History, commit_of
from ..run.summary import headline
from ..wording import count, short_kernel
from .parts import percent_ticks, picture_file, said_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 24
"""Panels of one picture: six rows of four stay readable on a screen."""

OVERVIEW = "history.png"

_COLUMNS = 4
_DPI = 120
_SLOWER, _FASTER, _OTHER = "#d55e00", "#009e73", "#9a9a9a"  # Okabe and Ito's, told apart by colour-blind readers
_LABELS = {Figure.SOL: "share of SOL", Figure.SPEEDUP: "speedup", Figure.RAW: "us"}


def history_png(history: History) -> bytes:
    """The series that moved, those with a slower newest level first, as PNG bytes; the first ones where none moved."""
    history = escape.cleaned(history)
    moved = sorted((track for track in history.tracks if track.shifts), key=lambda track: not track.newest_slower)
    shown = moved or [track for track in history.tracks if not track.too_short]
    if not shown:
        return picture_file(said_only(f"{count(len(history.runs), 'comparable run')}: nothing to show"), "png", _DPI)
    title = f"{len(moved)} of {len(history.tracks)} series moved" if moved else f"none of {len(history.tracks)} series moved"
    if len(shown) > MOST_PANELS:
        title += f"; {MOST_PANELS} shown"
    return _panels(history, shown[:MOST_PANELS], title)


def history_pictures(history: History) -> dict[str, bytes]:
    """File names and contents: `history.png`, and one picture with all kernels of every case where one of them moved."""
    history = escape.cleaned(history)
    found = {OVERVIEW: history_png(history)}
    cases: dict[tuple[str, str], list[Track]] = {}
    for track in history.tracks:
        cases.setdefault((track.series.suite, track.series.case), []).append(track)
    for (suite, case), tracks in cases.items():
        if any(track.shifts for track in tracks):
            found[f"{escape.file_name(suite)}_{case}.png"] = _panels(history, tracks, f"{suite}:{case}")
    return found


def _panels(history: History, tracks: Sequence[Track], title: str) -> bytes:
    from matplotlib.figure import Figure as Picture

    columns = min(_COLUMNS, len(tracks))
    rows = -(-len(tracks) // columns)
    picture = Picture(figsize=(max(7.5, 4.0 * columns), 1.2 + 2.3 * rows), layout="constrained")
    grid = picture.subplots(rows, columns, squeeze=False, sharex=True)
    for axes in grid.flat[len(tracks) :]:
        axes.set_visible(False)
    several = len({track.series.suite for track in tracks}) > 1
    for index, (track, axes) in enumerate(zip(tracks, grid.flat, strict=False)):
        _panel(history, track, axes)
        name = f"{track.series.suite}:{track.series.case}" if several else track.series.case
        axes.set_title(escape.picture(f"{name}  {short_kernel(track.series.kernel)}"), fontsize=7 if several else 8)
        axes.tick_params(labelbottom=index + columns >= len(tracks))  # the lowest of its column, in a row that is not full either
    for axes in grid[:, 0]:
        axes.set_ylabel(_LABELS[history.figure], fontsize=8)
    said = f"{headline(history.runs[-1].run)}, {count(len(history.runs), 'run')}"
    picture.suptitle(escape.picture(f"{said}\n{title}"), fontsize=10)
    return picture_file(picture, "png", _DPI)


def _panel(history: History, track: Track, axes: Axes) -> None:
    series = track.series
    shown = [_shown(series.figure, value) for value in series.values]
    axes.plot(series.places, shown, ".", markersize=4, color="#0072b2", zorder=2)
    starts = {place: index for index, place in enumerate(series.places)}
    edges = [0, *(starts[shift.place] for shift in track.shifts), len(shown)]
    for start, end in pairwise(edges):
        axes.hlines(
            statistics.median(shown[start:end]), series.places[start], series.places[end - 1], color="#222222", linewidth=1.2, zorder=3
        )
    for shift in track.shifts:
        colour = _colour(shift)
        axes.axvline(shift.place - 0.5, color=colour, linewidth=1.2, linestyle="--", zorder=1)
        text = f"{100 * (shift.change - 1):+.1f} %\n{commit_of(history.runs[shift.place].run)[:7]}"
        axes.text(shift.place - 0.3, 0.98, escape.picture(text), transform=axes.get_xaxis_transform(), fontsize=6, color=colour, va="top")
    axes.set_xlim(-1, len(history.runs))
    marks = sorted({0, len(history.runs) // 2, len(history.runs) - 1})
    axes.set_xticks(marks, [escape.picture(history.runs[place].run.created[:10]) for place in marks])
    axes.tick_params(labelsize=7)
    axes.margins(y=0.25)
    if series.figure is Figure.SOL:
        axes.yaxis.set_major_formatter(percent_ticks(1 if min(shown) > 0.1 else 2))
    axes.grid(axis="y", color="#e4e4e4", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)


def _shown(figure: Figure, value: float) -> float:
    return value if figure is Figure.RAW else 1.0 / value


def _colour(shift: Shift) -> str:
    if shift.yardstick_moved:
        return _OTHER
    return _SLOWER if shift.slower else _FASTER
