"""A history of runs as terminal text, Markdown and JSON: which kernel moved, by how much, between which commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..schema import ExitCode, Run
from ..stats.changepoint import SMALLEST_PART
from ..verdict.comparability import board_differences, fingerprint_differences
from ..verdict.history.series import Figure, LeftOut, Snapshot
from ..verdict.history.shifts import Shift, Track, blind, history_exit_code, runs_needed
from ..verdict.history.snapshots import Unreadable
from . import escape
from .run.document import finite
from .run.markdown import markdown_table
from .run.summary import headline
from .terminal import FittedTable
from .wording import DASH, count, microseconds, share, short_kernel

if TYPE_CHECKING:
    from rich.console import Console

HEADER = (
    "case",
    "kernel",
    "change",
    "before",
    "after",
    "runs",
    "first run of the new level",
    "adjusted p",
    "own time",
    "yardstick",
    "note",
)
_SHOWN_RUNS = 4
_MEANING = {
    Figure.SOL: "share of the speed of light (the yardstick's time over the kernel's, from the same rounds)",
    Figure.SPEEDUP: "speedup over the case's baseline (from the same rounds)",
    Figure.RAW: "raw time in microseconds",
}


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The runs, their series and the settings that a report of a history needs."""

    runs: Sequence[Snapshot]
    """In order of time."""
    left_out: Sequence[LeftOut]
    unreadable: Sequence[Unreadable]
    tracks: Sequence[Track]
    figure: Figure
    margin: float
    rate: float

    def changes(self) -> Iterator[tuple[Track, Shift]]:
        """Every change point with its series: newest run first, the largest change first within a run."""
        found = [(track, shift) for track in self.tracks for shift in track.shifts]
        return iter(sorted(found, key=lambda pair: (-pair[1].place, -abs(pair[1].change - 1.0))))


def history_document(history: History, exit_code: int) -> dict[str, Any]:
    """The document of `history --json`; `change` is new over old, above 1 is slower."""
    return {
        "figure": str(history.figure),
        "margin": history.margin,
        "rate": history.rate,
        "exit_code": int(exit_code),
        "blind": blind(history.tracks, history.rate),
        "reason": verdict_line(history),
        "runs": [_run_entry(one.run) for one in history.runs],
        "left_out": [msgspec.to_builtins(one) for one in history.left_out],
        "unreadable": [msgspec.to_builtins(one) for one in history.unreadable],
        "series": sum(not track.too_short for track in history.tracks),
        "too_short": sum(track.too_short for track in history.tracks),
        "suites": [_suite_entry(name, tracks) for name, tracks in _by_suite(history).items()],
        "changes": [_change_entry(history, track, shift) for track, shift in history.changes()],
    }


def history_lines(history: History) -> list[tuple[str, str]]:
    """The sentences around the table, each with its terminal style."""
    lines = [(line, "") for line in _about(history)]
    lines += [(f"left out: {text}", "yellow") for text in _left_out(history.left_out)]
    for one in history.unreadable:
        lines.append((f"skipped: {one.reason}" if one.folder in one.reason else f"skipped: {one.folder}: {one.reason}", "yellow"))
    return lines


def print_history(history: History, console: Console) -> None:
    """Print the runs, the table of change points, one line per run that moved and per suite, and the conclusion."""
    from rich.text import Text

    # The printed lines are cleaned, not the record: years of runs have a hundred thousand texts.
    for line, style in escape.cleaned(history_lines(history)):
        console.print(Text(line, style=style))
    rows = [(escape.cleaned(_row(history, track, shift)), _style(shift)) for track, shift in history.changes()]
    if rows:
        right = [*HEADER[2:6], *HEADER[7:10]]
        console.print(FittedTable(HEADER, [[Text(cell, style=style) for cell in cells] for cells, style in rows], right=right), crop=False)
    code = history_exit_code(history.tracks, history.rate)
    verdict_style = {ExitCode.REGRESSION: "bold red", ExitCode.UNDECIDED: "yellow"}.get(code, "green")
    for line in escape.cleaned([*_events(history), *_suite_lines(history)]):
        console.print(Text(line))
    console.print(Text(escape.cleaned(verdict_line(history)), style=verdict_style))


def history_markdown(history: History) -> str:
    """The same as GitHub-flavoured Markdown."""
    parts = ["# Change points", "", f"**{escape.markdown(verdict_line(history))}**", ""]
    parts += [f"* {escape.markdown(line)}" for line, _ in history_lines(history)]
    rows = [_row(history, track, shift) for track, shift in history.changes()]
    if rows:
        parts += ["", *markdown_table(HEADER, rows, right_from=2), "", *(f"* {escape.markdown(line)}" for line in _events(history))]
    parts += ["", *(f"* {escape.markdown(line)}" for line in _suite_lines(history))]
    return "\n".join(parts).rstrip() + "\n"


def verdict_line(history: History) -> str:
    """The conclusion, in one sentence."""
    judged = [track for track in history.tracks if not track.too_short]
    slower = [track for track in judged if track.newest_slower and track.series.gating]
    if slower:
        named = ", ".join(f"{track.series.kernel} on {track.series.case}" for track in slower[:3])
        more = f" and {len(slower) - 3} more" if len(slower) > 3 else ""
        return f"the newest level is slower than the one before by more than {100 * history.margin:.1f} % for {named}{more}"
    if blind(history.tracks, history.rate):
        needed = runs_needed(max(1, len(judged)), history.rate)
        why = f"too few to divide: a change point needs {SMALLEST_PART} on either side"
        if judged:
            why = f"too few for a change in one of {len(judged)} series to stand by itself"
        fewer = ", or select fewer series with --suite, --op, --kernel or --case" if judged else ""
        return f"nothing can be judged: {count(len(history.runs), 'comparable run')}, {why}; {needed} are needed{fewer}"
    return f"no newest level is slower than the one before by more than {100 * history.margin:.1f} %"


def level_text(figure: Figure, value: float) -> str:
    """A level in the figure's own unit, where more is better but for raw times: `84.1 %`, `1.91x`, `31.04 us`."""
    if figure is Figure.RAW:
        return f"{microseconds(value)} us"
    return share(1.0 / value) if figure is Figure.SOL else f"{1.0 / value:.3f}x"


def commit_of(run: Run) -> str:
    """`0123456789` or `0123456789 with uncommitted changes`."""
    commit = run.environment.git_commit[:10] or "unknown"
    return f"{commit} with uncommitted changes" if run.environment.git_dirty else commit


def _about(history: History) -> list[str]:
    if not history.runs:
        return ["0 comparable runs"]
    first, newest = history.runs[0].run, history.runs[-1].run
    span = f"{count(len(history.runs), 'run')} on {headline(newest)}, {first.created} to {newest.created}"
    return [span, f"figure: {_MEANING[history.figure]}; changes within {100 * history.margin:.1f} % are not shown"]


def _left_out(left_out: Sequence[LeftOut]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        reasons.setdefault(one.reason, []).append(one.run)
    return [
        f"{count(len(runs), 'run')} not comparable with the newest ({reason}): {', '.join(runs[:_SHOWN_RUNS])}"
        + (f" and {len(runs) - _SHOWN_RUNS} more" if len(runs) > _SHOWN_RUNS else "")
        for reason, runs in reasons.items()
    ]


def _row(history: History, track: Track, shift: Shift) -> list[str]:
    series, run = track.series, history.runs[shift.place].run
    several = len({one.series.suite for one in history.tracks}) > 1
    return [
        f"{series.suite}:{series.case}" if several else series.case,
        short_kernel(series.kernel),
        f"{100 * (shift.change - 1):+.1f} %",
        level_text(series.figure, shift.before),
        level_text(series.figure, shift.after),
        f"{shift.runs_before} | {shift.runs_after}",
        f"{run.id} {run.created[:10]} {commit_of(run)}",
        f"{shift.adjusted_p:.1g}",
        f"{100 * (shift.time_change - 1):+.1f} %",
        DASH if shift.yardstick_change is None else f"{100 * (shift.yardstick_change - 1):+.1f} %",
        _note(track, shift),
    ]


def _note(track: Track, shift: Shift) -> str:
    if shift.yardstick_moved and shift.cause is None:
        return "the yardstick moved, not this kernel"
    newest = shift is track.shifts[-1]
    told = f"; {shift.cause}: {shift.cause_reason}" if shift.cause is not None else ""
    note = "" if not newest else " (newest level)" if track.series.gating else " (newest level, advisory: not in --gate)"
    return f"{'slower' if shift.slower else 'faster'}{note}{told}"


def _style(shift: Shift) -> str:
    if shift.yardstick_moved:
        return "dim"
    return "red" if shift.slower else "green"


def _events(history: History) -> list[str]:
    """One line per run with a change point, newest first: how many series moved, and what else changed at that run."""
    found: dict[tuple[int, int], list[Shift]] = {}
    for _, shift in history.changes():
        found.setdefault((shift.place, shift.place_before), []).append(shift)
    lines = []
    for (place, before), shifts in found.items():
        run = history.runs[place].run
        moved = [
            f"{len(part)} {word} ({_span(part)})"
            for word, part in (("slower", [one for one in shifts if one.slower]), ("faster", [one for one in shifts if not one.slower]))
            if part
        ]
        changed = "; ".join(changed_between(history.runs[before].run, run)) or "nothing that the records hold"
        lines.append(f"at run {run.id} of {run.created[:10]}: {', '.join(moved)}; changed there: {changed}")
    return lines


def changed_between(old: Run, new: Run) -> list[str]:
    """Other differences between two runs that may explain a change: commit, driver, toolchain, board."""
    found = [f"commit: {commit_of(old)} -> {commit_of(new)}"] if commit_of(old) != commit_of(new) else []
    return [*found, *fingerprint_differences(new, old), *board_differences(new, old)]


def _span(shifts: Sequence[Shift]) -> str:
    changes = sorted(shift.change - 1 for shift in shifts)
    return f"{100 * changes[0]:+.1f} %" if len(changes) == 1 else f"{100 * changes[0]:+.1f} % to {100 * (changes[-1]):+.1f} %"


def _by_suite(history: History) -> dict[str, list[Track]]:
    found: dict[str, list[Track]] = {}
    for track in history.tracks:
        found.setdefault(track.series.suite, []).append(track)
    return found


def _suite_lines(history: History) -> list[str]:
    lines = []
    for name, tracks in _by_suite(history).items():
        entry = _suite_entry(name, tracks)
        short = f"; {entry['too_short']} more have too few runs" if entry["too_short"] else ""
        lines.append(
            f"suite {name}: {entry['series']} series; {count(entry['slower'], 'change')} to slower, {entry['faster']} to faster; "
            f"newest level slower on {entry['newest_slower']}{short}"
        )
    return lines


def _suite_entry(name: str, tracks: Sequence[Track]) -> dict[str, Any]:
    shifts = [shift for track in tracks for shift in track.shifts]
    return {
        "suite": name,
        "series": sum(not track.too_short for track in tracks),
        "too_short": sum(track.too_short for track in tracks),
        "slower": sum(shift.slower for shift in shifts),
        "faster": sum(not shift.slower for shift in shifts),
        "newest_slower": sum(track.newest_slower for track in tracks),
    }


def _run_entry(run: Run) -> dict[str, Any]:
    return {"run": run.id, "created": run.created, "commit": run.environment.git_commit, "dirty": run.environment.git_dirty}


def _change_entry(history: History, track: Track, shift: Shift) -> dict[str, Any]:
    series, run, before = track.series, history.runs[shift.place].run, history.runs[shift.place_before].run
    return {
        "suite": series.suite,
        "case": series.case,
        "kernel": series.kernel,
        "direction": "slower" if shift.slower else "faster",
        "change": finite(shift.change),
        "before": finite(shift.before),
        "after": finite(shift.after),
        "runs_before": shift.runs_before,
        "runs_after": shift.runs_after,
        "p_value": shift.p_value,
        "adjusted_p": shift.adjusted_p,
        "time_change": finite(shift.time_change),
        "yardstick_change": finite(shift.yardstick_change),
        "yardstick_moved": shift.yardstick_moved,
        "newest": shift is track.shifts[-1],
        "decides": series.gating,
        "first": _run_entry(run),
        "last_before": _run_entry(before),
        "changed_there": changed_between(before, run),
    } | ({"cause": shift.cause, "cause_reason": shift.cause_reason} if shift.cause is not None else {})
