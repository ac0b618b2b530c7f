"""Months of nightlies as a small static site: an index, a page per kernel with its series, the newest run, and the data as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...schema import Run
from ...verdict.history.series import Figure
from ...verdict.history.shifts import Shift, Track
from .. import escape
from ..history import History, commit_of, history_lines, level_text, verdict_line
from ..run.document import finite
from ..run.summary import headline
from .charts import history_caption, history_line
from .page import environment

INDEX, NEWEST, DATA = "index.html", "newest.html", "dashboard-data.json"
DATA_VERSION = 1
"""Version of the format of `dashboard-data.json`, which docs/reading_results.md describes."""


class _Row(msgspec.Struct, frozen=True):
    """One kernel in the index."""

    name: str
    page: str
    series: int
    moved: int
    slower: int


def site_files(history: History, newest: str, run: Run) -> dict[str, bytes]:
    """File names and contents of the site.

    Args:
        history: the comparable runs and their series.
        newest: the HTML report of the newest run, which `run` is the record of.
    """
    run, history = escape.cleaned(run), escape.cleaned(history)
    pages: dict[str, list[Track]] = {}
    for track in history.tracks:
        if track.series.values:
            pages.setdefault(track.series.kernel, []).append(track)
    names = _file_names(pages)
    files = {NEWEST: newest.encode(), DATA: msgspec.json.encode(dashboard_data(history))}
    templates = environment()
    for kernel, tracks in pages.items():
        lines = [(history_line(history, track), history_caption(track)) for track in _worst_first(tracks)]
        files[names[kernel]] = templates.get_template("kernel.html.j2").render(kernel=kernel, lines=lines, index=INDEX).encode()
    rows = [_row(kernel, names[kernel], tracks) for kernel, tracks in pages.items()]
    files[INDEX] = (
        templates.get_template("index.html.j2")
        .render(
            verdict=verdict_line(history),
            headline=headline(run),
            said=[line for line, _ in history_lines(history)],
            kernels=sorted(rows, key=lambda row: (-row.slower, -row.moved, row.name)),
            changes=[_change(history, track, shift, names) for track, shift in history.changes()],
            runs=[(one.run.created, one.run.id, commit_of(one.run)) for one in reversed(history.runs)],
            newest=NEWEST,
            data=DATA,
        )
        .encode()
    )
    return files


def dashboard_data(history: History) -> dict[str, Any]:
    """The series as plain JSON values for other dashboards: `points` are [index of the run, figure, microseconds]."""
    return {
        "version": DATA_VERSION,
        "figure": str(history.figure),
        "larger_is_better": history.figure is not Figure.RAW,
        "runs": [
            {"id": one.run.id, "created": one.run.created, "commit": one.run.environment.git_commit, "dirty": one.run.environment.git_dirty}
            for one in history.runs
        ],
        "series": [_series(track) for track in history.tracks],
    }


def _series(track: Track) -> dict[str, Any]:
    series = track.series
    return {
        "suite": series.suite,
        "case": series.case,
        "kernel": series.kernel,
        "gating": series.gating,
        "points": [
            [place, finite(_shown(series.figure, value)), finite(time)]
            for place, value, time in zip(series.places, series.values, series.times_us, strict=True)
        ],
        "change_points": [
            {"run": shift.place, "change": finite(shift.change), "slower": shift.slower, "adjusted_p": finite(shift.adjusted_p)}
            for shift in track.shifts
        ],
    }


def _shown(figure: Figure, value: float) -> float:
    return value if figure is Figure.RAW else 1.0 / value


def _row(kernel: str, page: str, tracks: Sequence[Track]) -> _Row:
    return _Row(
        name=kernel,
        page=page,
        series=len(tracks),
        moved=sum(bool(track.shifts) for track in tracks),
        slower=sum(track.newest_slower for track in tracks),
    )


def _change(history: History, track: Track, shift: Shift, names: dict[str, str]) -> dict[str, str]:
    run = history.runs[shift.place].run
    return {
        "case": f"{track.series.suite}:{track.series.case}", "kernel": track.series.kernel, "page": names[track.series.kernel],
        "kind": "the yardstick moved" if shift.yardstick_moved else "slower" if shift.slower else "faster",
        "mark": "incomparable" if shift.yardstick_moved else "regression" if shift.slower else "improvement",
        "change": f"{100 * (shift.change - 1):+.1f} %", "before": level_text(track.series.figure, shift.before),
        "after": level_text(track.series.figure, shift.after), "run": f"{run.created[:10]} {run.id}", "commit": commit_of(run),
    }  # fmt: skip


def _worst_first(tracks: Sequence[Track]) -> list[Track]:
    return sorted(tracks, key=lambda track: (not track.newest_slower, not track.shifts, track.series.suite, track.series.case))


def _file_names(kernels: Iterable[str]) -> dict[str, str]:
    """A distinct file name for every kernel id, whatever its characters."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for kernel in kernels:
        stem = re.sub(r"[^A-Za-z0-9_@-]+", "-", kernel).strip("-") or "kernel"
        name, number = f"kernel-{stem}.html", 1
        while name.lower() in taken:
            number += 1
            name = f"kernel-{stem}-{number}.html"
        taken.add(name.lower())
        found[kernel] = name
    return found
