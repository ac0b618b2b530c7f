"""Charts as SVG text for a page: speedups with intervals, share of the limit against bytes, distributions of times, series of a history.

Every chart has a title that a screen reader speaks.  Colours of axes and text come from the page's style, so both themes can show them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from ...schema import Estimate, Result, Role
from ...stats.weighted import best_fused
from ...verdict.history.series import Figure
from ...verdict.history.shifts import Track
from ..escape import html
from ..history import History, commit_of, level_text
from ..plots.palette import colour_of
from ..versions import VersionStep
from ..wording import bounded, count, share_of_limit, short_kernel, size

MOST_BARS = 150
"""Speedups in one chart; the table holds them all."""
MOST_NAMED = 600
"""Marks of a chart that each say their case and figure to a pointer; of more, which lie on each other, only the kernel is said."""

_NARROW = 600
"""Pixels up to which a chart is legible on a phone; a wider one scrolls there instead of shrinking."""
AXIS = 0.05
"""Half of the axis of a distribution in a table, as a share of the median: what lies beyond is drawn at its end."""


class Spread(msgspec.Struct, frozen=True):
    """Quantiles of the timed calls of one kernel on one case, in microseconds."""

    p5: float
    p25: float
    median: float
    p75: float
    p95: float


def speedup_bars(rows: Sequence[tuple[str, Result]]) -> str:
    """The best fused kernel of every case, the largest speedup first; `rows` are case keys and results with a speedup."""
    timed = [(case, result, result.measurement.speedup) for case, result in rows if result.measurement and result.measurement.speedup]
    timed.sort(key=lambda row: -row[2].value)
    bars = [_Bar(case, short_kernel(one.kernel), colour_of(one.kernel, one.role), speedup) for case, one, speedup in timed]
    return _bars(bars, "Speedup of the best fused kernel over the split chain", "1x: the split chain")


def version_bars(steps: Sequence[VersionStep]) -> str:
    """Every version of a kernel against the version before it, as `version_steps` sorts them."""
    bars = [
        _Bar(f"{step.newer.case_key} @{version}", step.label, colour_of(step.newer.kernel, step.newer.role), step.speedup)
        for step in steps
        if (version := step.newer.kernel.rpartition("@")[2])
    ]
    return _bars(bars, "Speedup of each version of a kernel over the version before it", "1x: the version before")


class _Bar(msgspec.Struct, frozen=True):
    label: str
    what: str
    """Shown with the label when the pointer rests on the bar."""
    colour: str
    speedup: Estimate


def _bars(bars: Sequence[_Bar], title: str, one_label: str) -> str:
    """Bars with intervals from 0, `bars` being sorted; the first and the last where there are more than `MOST_BARS`."""
    if not bars:
        return ""
    shown = bars if len(bars) <= MOST_BARS else [*bars[: MOST_BARS // 2], *bars[-(MOST_BARS // 2) :]]
    left, width, step = 300, 900, 18
    top = max(bar.speedup.high if bounded(bar.speedup) else bar.speedup.value for bar in shown)
    scale = (width - left - 70) / max(top, 1.2)
    one, parts = left + scale, []
    for place, bar in enumerate(shown):
        y, estimate = 24 + place * step, bar.speedup
        end = left + estimate.value * scale
        label = bar.label if len(bar.label) <= 44 else f"{bar.label[:21]}…{bar.label[-22:]}"
        parts.append(
            f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{html(label)}</text>'
            f'<rect x="{left}" y="{y + 2}" width="{end - left:.1f}" height="11" fill="{bar.colour}">'
            f"<title>{html(f'{bar.label}, {bar.what}: {estimate.value:.2f}x')}</title></rect>"
        )
        if bounded(estimate):
            low, end = left + estimate.low * scale, left + estimate.high * scale
            parts.append(f'<path class="bar" d="M{low:.1f} {y + 7.5}H{end:.1f}M{low:.1f} {y + 4.5}v6M{end:.1f} {y + 4.5}v6"/>')
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 11}">{estimate.value:.2f}x</text>')
    height = 30 + len(shown) * step
    parts.append(
        f'<path class="one" d="M{one:.1f} 18V{height - 4}"/><text x="{one:.1f}" y="13" text-anchor="middle">{html(one_label)}</text>'
    )
    more = f", the first and the last {MOST_BARS // 2} of {len(bars)}" if len(shown) < len(bars) else ""
    return _svg(width, height, f"{title}, with 95 % intervals, sorted{more}", parts)


def roofline(rows: Sequence[tuple[int, Result]]) -> str:
    """Share of the speed of light against the minimum bytes of the case; `rows` are those bytes and results with a share."""
    shown = [(math.log10(size_), result, result.measurement.sol) for size_, result in rows if size_ > 0 and result.measurement]
    points = [(x, result, sol) for x, result, sol in shown if sol is not None and sol > 0]
    if not points:
        return ""
    width, height, left, bottom, top = 900, 380, 60, 40, 20
    low, high = math.floor(min(x for x, _, _ in points)), math.ceil(max(x for x, _, _ in points) + 1e-9)
    highest = max(1.05, *(sol for _, _, sol in points))
    across = (width - left - 20) / max(1, high - low)
    up = (height - bottom - top) / highest
    parts = []
    for decade in range(low, high + 1):
        x = left + (decade - low) * across
        parts.append(f'<path class="grid" d="M{x:.1f} {top}V{height - bottom}"/>')
        anchor = "end" if decade == high else "middle"
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 16}" text-anchor="{anchor}">{size(10**decade).replace(".0", "")}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = height - bottom - share * up
        parts.append(f'<path class="{"one" if share == 1 else "grid"}" d="M{left} {y:.1f}H{width - 20}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
    marks: dict[tuple[str, str], list[str]] = {}
    for x, result, sol in points:
        kernel = short_kernel(result.kernel)
        said = kernel if len(points) > MOST_NAMED else f"{result.case_key}, {kernel}: {share_of_limit(sol)} of the speed of light"
        mark = _mark(result.role, left + (x - low) * across, height - bottom - sol * up)
        marks.setdefault((said, colour_of(result.kernel, result.role)), []).append(mark)
    for (said, colour), shapes in marks.items():
        # A mark that lies on an equal one changes nothing.
        drawn = "".join(dict.fromkeys(shapes))
        parts.append(f'<path fill="{colour}" fill-opacity=".8" d="{drawn}"><title>{html(said)}</title></path>')
    parts.append(f'<text x="{width / 2}" y="{height - 4}" text-anchor="middle">minimum bytes of the case</text>')
    return _svg(width, height, "Share of the speed of light against the minimum bytes of the case", parts)


def legend(results: Iterable[Result]) -> list[tuple[str, str]]:
    """Kernel and colour, one entry per name over all ops, in the order of roles."""
    found = {short_kernel(result.kernel): result for result in results if result.measurement is not None}
    order = list(Role)
    return [
        (name, colour_of(name, result.role))
        for name, result in sorted(found.items(), key=lambda item: (order.index(item[1].role), item[0]))
    ]


def small_bar(estimate: Estimate, top: float) -> str:
    """A bar of a table's cell, `top` being the largest value of its column; the cell's text says the figure.

    One element, which the style sheet draws by its percentages: thousands of drawings of their own would make a page slow.
    """
    values = (estimate.value, *((estimate.low, estimate.high) if bounded(estimate) else ()))
    end, *ends = (round(100 * min(1.0, value / top)) for value in values)
    whisker = f";--l:{ends[0]};--h:{max(ends[1], ends[0] + 1)}" if ends else ""
    return f'<i class="s" style="--e:{end}{whisker}"></i>'


def small_box(spread: Spread) -> str:
    """Whiskers at 5 and 95 %, a box from 25 to 75 %, the median in the middle of an axis that ends `AXIS` away from it."""
    ends = (spread.p5, spread.p25, spread.p75, spread.p95)
    a, b, d, e = (round(50 + 49 * max(-1.0, min(1.0, (end / spread.median - 1) / AXIS))) for end in ends)
    return f'<i class="d" style="--a:{a};--b:{b};--c:{max(d, b + 1)};--e:{max(e, a + 1)}"></i>'


def history_line(history: History, track: Track) -> str:
    """One series: a dot per run, a line per level, a mark and the commit per change point.  Higher is better but for raw times."""
    series = track.series
    shown = [value if series.figure is Figure.RAW else 1.0 / value for value in series.values]
    low, high = min(shown), max(shown)
    # Never a smaller axis than 6 % of the figure: noise within a percent must not look like a change.
    middle, half = (low + high) / 2, max((high - low) * 0.65, 0.03 * (low + high) / 2)
    low, high = middle - half, middle + half
    width, height, left, bottom = 420, 130, 58, 18
    across = (width - left - 10) / max(1, len(history.runs) - 1)

    def at(place: int) -> float:
        return left + place * across

    def level(value: float) -> float:
        return height - bottom - (value - low) / (high - low) * (height - bottom - 14)

    edges = [0, *(series.places.index(shift.place) for shift in track.shifts), len(shown)]
    parts = [
        f'<circle cx="{at(place):.1f}" cy="{level(value):.1f}" r="2.5"><title>'
        f"{html(f'{history.runs[place].run.created[:10]} {commit_of(history.runs[place].run)}: {value:.3g}')}</title></circle>"
        for place, value in zip(series.places, shown, strict=True)
    ]
    for start, end in pairwise(edges):
        ordered = sorted(shown[start:end])
        middle = level(ordered[len(ordered) // 2])
        parts.append(f'<path class="m" d="M{at(series.places[start]):.1f} {middle:.1f}H{at(series.places[end - 1]):.1f}"/>')
    for shift in track.shifts:
        x = (at(shift.place) + at(shift.place_before)) / 2
        kind = "slower" if shift.slower else "faster"
        anchor = "end" if x > width * 0.7 else "start"
        said = html(f"{100 * (shift.change - 1):+.1f} % {commit_of(history.runs[shift.place].run)[:7]}")
        parts.append(f'<path class="{kind}" d="M{x:.1f} 12V{height - bottom}"/>')
        parts.append(f'<text class="{kind}" x="{x + (-4 if anchor == "end" else 4):.1f}" y="10" text-anchor="{anchor}">{said}</text>')
    first, last = history.runs[0].run.created[:10], history.runs[-1].run.created[:10]
    parts.append(f'<text x="{left}" y="{height - 4}">{html(first)}</text>')
    parts.append(f'<text x="{width - 10}" y="{height - 4}" text-anchor="end">{html(last)}</text>')
    for bound in (low, high):
        said = level_text(series.figure, bound if series.figure is Figure.RAW else 1.0 / bound)
        parts.append(f'<text x="{left - 8}" y="{level(bound) + 4:.1f}" text-anchor="end">{html(said)}</text>')
    return _svg(width, height, history_caption(track), parts)


def history_caption(track: Track) -> str:
    """`qknorm_rope:flux_1024 fused_triton@2: newest 92.3 %; 1 change point`."""
    series, moved = track.series, count(len(track.shifts), "change point") if track.shifts else "no change point"
    newest = level_text(series.figure, series.values[-1])
    return f"{series.suite}:{series.case} {short_kernel(series.kernel)}: newest {newest}; {moved}"


def best_of_each(cases: Iterable[tuple[str, list[Result]]]) -> list[tuple[str, Result]]:
    """The best fused kernel of every case that has one."""
    return [(key, best) for key, rows in cases if (best := best_fused(rows)) is not None]


def _mark(role: Role, x: float, y: float) -> str:
    shapes = {
        Role.SPLIT: f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6Z",
        Role.COMPILED: f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4-4Z",
        Role.PEER: f"M{x:.1f} {y - 4:.1f}l4 7h-8Z",
        Role.FUSED: f"M{x - 3.5:.1f} {y:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0Z",
    }
    return shapes[role]


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    said = html(title)
    head = f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{said}"><title>{said}</title>'
    drawn = f"{head}{''.join(parts)}</svg>"
    return f'<div class="scroll">{drawn}</div>' if width > _NARROW else drawn
