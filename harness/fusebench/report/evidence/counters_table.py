"""Tables of Nsight Compute counters: one row per kernel, two captures side by side, the reading rules, the memory traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ...counters import reading
from ...counters.diff import Change, Pair, changes, revision_pairs, version_pairs
from ...counters.figures import FIGURES, LaunchFigures, Unit, call_figures, total, total_of, worth_showing
from ...counters.metric_sets import NAMED
from ...counters.records import Capture, CaptureStatus, CounterRun
from ...counters.traffic import describe, traffic
from ..wording import DASH, microseconds, short_kernel, size

CAPTURE_COLUMNS = (
    "case", "kernel", "time us", "regs", "occupancy", "instructions",
    "DRAM read", "stored", "moved/min", "DRAM %", "longest wait", "remark",
)  # fmt: skip
CAPTURE_NUMBERS = ("time us", "regs", "instructions", "DRAM read", "stored", "moved/min", "DRAM %")
LAUNCHES_SHOWN = 3
"""A chain of more launches has one column in a table of figures, not one per launch besides: it would be too wide to read."""
FIGURE_COLUMN = "figure"
LEAST_CHANGE = 1.0
"""Percent: from here on figures other than time are called better or worse."""


class _Column(msgspec.Struct, frozen=True):
    heading: str
    launches: tuple[LaunchFigures, ...]


def capture_rows(run: CounterRun) -> list[tuple[str, ...]]:
    """A row per kernel and case, and for a chain one per launch below it; rows of `CAPTURE_COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for capture in run.captures:
        head = (capture.case_key, short_label(capture))
        if capture.status is not CaptureStatus.CAPTURED:
            blanks = ("",) * (len(CAPTURE_COLUMNS) - len(head) - 1)
            rows.append((*head, *blanks, remark(capture)))
            continue
        launches = call_figures(capture)
        found = traffic(capture)
        moved = f"{found.per_minimum_byte:.2f}" if found is not None and found.stored is not None else DASH
        if len(launches) == 1:
            rows.append((*head, *_launch_cells(launches[0], moved), ""))
            continue
        rows.append((*head, *_chain_cells(launches, moved), f"{len(launches)} launches"))
        rows += [("", f"  {launch.name}", *_launch_cells(launch, ""), f"launch {place + 1}") for place, launch in enumerate(launches)]
    return rows


def figure_columns(captures: Sequence[Capture]) -> tuple[str, ...]:
    """Headings of `figure_rows`: the kernels, a short chain followed by its launches."""
    return (FIGURE_COLUMN, *(column.heading for column in _columns(captures)))


def figure_rows(captures: Sequence[Capture]) -> list[tuple[str, ...]]:
    """Every figure of the captures of a case: a row per figure that one of them has, a column for each of `figure_columns`."""
    columns = _columns(captures)
    rows = []
    for figure in FIGURES:
        values = [total(figure, column.launches) for column in columns]
        if worth_showing(figure, values):
            rows.append((figure.title, *(written(value, figure.unit) for value in values)))
    return rows


def captures_in_full(run: CounterRun) -> list[Capture]:
    """Captures to show in full on a terminal: those of a one-case run that no table of differences shows.

    Empty if metrics were named, because these have their own table.
    """
    captured = [capture for capture in run.captures if capture.status is CaptureStatus.CAPTURED]
    if run.metric_set == NAMED or len({capture.case_key for capture in captured}) != 1:
        return []
    paired = [capture for pair in diff_pairs(run) for capture in (pair.before, pair.after)]
    return [capture for capture in captured if capture not in paired]


def diff_columns(before: Capture, after: Capture) -> tuple[str, ...]:
    """Headings of `diff_rows`: the kernels, or the revisions of one kernel."""
    if before.kernel != after.kernel:
        return (FIGURE_COLUMN, short_kernel(before.kernel), short_kernel(after.kernel), "change")
    return (FIGURE_COLUMN, before.revision or "before", after.revision or "this", "change")


def diff_rows(before: Capture, after: Capture) -> list[tuple[str, ...]]:
    """A row per figure that either capture has: its name, before, after, and the change in percent."""
    names = [launch.name for launch in after.launches]
    return [
        (
            change.title if change.launch is None else f"launch {change.launch + 1}, {names[change.launch]}: {change.title}",
            written(change.before, change.unit),
            written(change.after, change.unit),
            _change(change),
        )
        for change in changes(before, after)
    ]


def changed_rows(before: Capture, after: Capture) -> list[tuple[str, ...]]:
    """The rows of `diff_rows` with a change of at least `LEAST_CHANGE`, or from zero.  Figures that only one capture has are left out."""
    return [row for row, change in zip(diff_rows(before, after), changes(before, after), strict=True) if _changed(change)]


def diff_title(before: Capture, after: Capture) -> str:
    """The title of a table of `diff_rows`."""
    what = before.kernel if before.kernel == after.kernel else f"{before.kernel} and {short_kernel(after.kernel)}"
    return f"{what} on {after.case_key} ({after.shape})"


def diff_pairs(run: CounterRun) -> list[Pair]:
    """The captures of one run to compare: versions of a kernel, and the base and head of one kernel."""
    base = [capture for capture in run.captures if capture.revision]
    this = [capture for capture in run.captures if not capture.revision]
    return [*version_pairs(run.captures), *revision_pairs(base, this)]


def readings(capture: Capture) -> list[str]:
    """The findings of the rules on a capture, one sentence each; for a chain of launches each names its launch."""
    return [
        one.sentence if one.launch is None else f"launch {one.launch + 1}, {capture.launches[one.launch].name}: {one.sentence}"
        for one in reading.read(capture)
    ]


def traffic_line(capture: Capture, cache_control: str = "all") -> str:
    """Bytes moved per byte that the op must move; empty if DRAM bytes were not collected."""
    found = traffic(capture)
    return "" if found is None else describe(found, flushed=cache_control == "all")


def kernel_label(capture: Capture) -> str:
    """`op/name@version`, with its revision if there are two."""
    return f"{capture.kernel} ({capture.revision})" if capture.revision else capture.kernel


def short_label(capture: Capture) -> str:
    """`name@version`, with its revision if there are two: for tables whose case names the op."""
    return f"{short_kernel(capture.kernel)} ({capture.revision})" if capture.revision else short_kernel(capture.kernel)


def remark(capture: Capture) -> str:
    """`not runnable: quack is not installed`."""
    return f"{capture.status.value.replace('_', ' ')}: {capture.reason or 'no reason recorded'}"


def written(value: float | None, unit: Unit) -> str:
    """A figure with its unit."""
    return DASH if value is None else _WRITTEN[unit](value)


_WRITTEN: dict[Unit, Callable[[float], str]] = {
    Unit.NANOSECONDS: lambda value: f"{microseconds(value / 1e3)} us",
    Unit.COUNT: lambda value: f"{value:,.0f}",
    Unit.BYTES: lambda value: size(round(value)),
    Unit.BYTES_PER_SECOND: lambda value: f"{value / 1e12:.2f} TB/s",
    Unit.PERCENT: lambda value: f"{value:.1f} %",
    Unit.NUMBER: lambda value: f"{value:.2f}",
}


def _changed(change: Change) -> bool:
    if change.before is None or change.after is None or change.before == change.after:
        return False
    return change.percent is None or abs(change.percent) >= LEAST_CHANGE


def _change(change: Change) -> str:
    if change.before is None or change.after is None:
        return ""
    if change.before == change.after:
        return "same"
    mark = {True: " (better)", False: " (worse)", None: ""}[change.improved]
    percent = change.percent
    if percent is None:
        return f"from none{mark}"
    return f"{percent:+.1f} %{mark}" if abs(percent) >= 0.05 else "0.0 %"


def _columns(captures: Sequence[Capture]) -> list[_Column]:
    columns = []
    for capture in captures:
        launches = call_figures(capture)
        heading = short_label(capture)
        columns.append(_Column(heading, launches))
        if 1 < len(launches) <= LAUNCHES_SHOWN:
            columns += [_Column(f"{heading}, {launch.name}", (launch,)) for launch in launches]
    return columns


def _launch_cells(launch: LaunchFigures, moved: str) -> tuple[str, ...]:
    """Everything between the kernel's name and the remark."""
    return (
        _microseconds(launch.get("time")),
        written(launch.get("registers"), Unit.COUNT),
        _occupancy(launch),
        written(launch.get("instructions"), Unit.COUNT),
        written(launch.get("dram_read"), Unit.BYTES),
        written(launch.l2_written, Unit.BYTES),
        moved,
        _plain(launch.get("dram_throughput")),
        _longest_wait(launch),
    )


def _chain_cells(launches: tuple[LaunchFigures, ...], moved: str) -> tuple[str, ...]:
    """The figures that add up over launches; the others stand in the rows of the launches."""
    return (
        _microseconds(total_of(lambda launch: launch.get("time"), launches)),
        "",
        "",
        written(total_of(lambda launch: launch.get("instructions"), launches), Unit.COUNT),
        written(total_of(lambda launch: launch.get("dram_read"), launches), Unit.BYTES),
        written(total_of(lambda launch: launch.l2_written, launches), Unit.BYTES),
        moved,
        "",
        "",
    )


def _occupancy(launch: LaunchFigures) -> str:
    """`28.6 of 31.2 % (registers)`: achieved, possible, and what keeps it there."""
    limits = f" ({', '.join(launch.limited_by)})" if launch.limited_by else ""
    return f"{_plain(launch.get('achieved_occupancy'))} of {_plain(launch.get('theoretical_occupancy'))} %{limits}"


def _longest_wait(launch: LaunchFigures) -> str:
    if not launch.waits:
        return DASH
    reason, share = launch.waits[0]
    return f"{reason.replace('_', ' ')} {share:.0f} %"


def _microseconds(nanoseconds: float | None) -> str:
    return DASH if nanoseconds is None else microseconds(nanoseconds / 1e3)


def _plain(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"
