"""Parts that pictures share: rows of cases with their labels, the title and legend, and the file formats."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...schema import Estimate, Result, Role, Run, Status
from .. import escape
from ..run.summary import headline, sampling
from ..wording import bounded, short_kernel
from .palette import ROLE_ORDER, colour_of, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

MOST_LABELLED_CASES = 8
"""Cases up to which every figure is written beside its mark."""
MOST_SHORT_CASES = 40
"""Cases up to which a reader sees the lower axis from every row; above it the axis stands at the top too."""

DPI = 140
_TITLE_LETTERS = 13
"""Letters of the title in an inch: it takes 14.6 of those that `sampling` is made of."""
_LABEL_LETTERS = 60
"""Letters of a case's name or shape; the middle of a longer one is cut out."""
_HEIGHTS = ((MOST_LABELLED_CASES, 0.95), (MOST_SHORT_CASES, 0.36), (math.inf, 0.19))
"""Inches of a row, by the number of cases up to which they hold."""


def percent_ticks(decimals: int = 0) -> PercentFormatter:
    """Ticks of an axis of shares: 0.9 as `90 %`."""
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(xmax=1, decimals=decimals, symbol=" %")


def picture_file(figure: Figure, form: str, dpi: int = DPI) -> bytes:
    """`figure` as `png`, with at most 256 colours, which halves the file, or as `svg`.

    Without the software's version, the date and random ids in the file, the same run gives the same bytes.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    if form == "svg":
        with matplotlib.rc_context({"svg.hashsalt": "fusebench"}):
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        return buffer.getvalue()
    from PIL import Image

    figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"compress_level": 1})
    drawn, small = Image.open(buffer).convert("RGB"), io.BytesIO()
    drawn.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()


def said_only(text: str) -> Figure:
    """A small picture of one sentence, in place of an empty one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2), layout="constrained")
    figure.text(0.5, 0.5, escape.picture(text), ha="center", va="center")
    return figure


def nothing_measured(run: Run) -> Figure:
    """The picture of a run without times."""
    return said_only(f"{headline(run)}\nnothing was measured")


def timed_results(run: Run) -> list[Result]:
    """Results with a place on the axes, which compare whole ops: a kernel that covers a part of one has none."""
    return [result for result in run.results if result.status is Status.MEASURED and result.measurement is not None and not result.covers]


def kernels_of(results: Iterable[Result]) -> dict[str, Role]:
    """Names without the op, which a case has one of, and their roles: kernels of one name and version share a mark over a suite's ops."""
    roles = {short_kernel(result.kernel): result.role for result in results}
    return dict(sorted(roles.items(), key=lambda item: ROLE_ORDER.index(item[1])))


def two_panels(run: Run, cases: Sequence[str]) -> tuple[Figure, Axes, Axes, float]:
    """A figure with a row for every case and two axes side by side; and the inches of a row."""
    from matplotlib.figure import Figure

    each = next(inches for most, inches in _HEIGHTS if len(cases) <= most)
    figure = Figure(figsize=(11.0, max(4.6, 2.2 + each * len(cases))), layout="constrained", dpi=DPI)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes in (left, right):
        for place in range(0, len(cases), 2):
            axes.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0)
        axes.axvline(1.0, color="#222222", linewidth=1, linestyle="--", zorder=2)
        axes.grid(axis="x", color="#e0e0e0", zorder=1)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.margins(x=0.08)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if len(cases) > MOST_SHORT_CASES:
            axes.tick_params(axis="x", top=True, labeltop=True)
    names = [case_label(run, case, sep="\n" if len(cases) <= MOST_LABELLED_CASES else "  ") for case in cases]
    left.set_yticks(range(len(cases)), names, fontsize=8 if each > 0.2 else 6)
    return figure, left, right, each


def mark(axes: Axes, points: Sequence[tuple[float, Estimate]], kernel: str, role: Role, *, small: bool, percent: bool | None) -> None:
    """Estimates of one kernel with their intervals, each at its place on the rows; their figures beside them unless `percent` is None."""
    if not points:
        return
    nan = float("nan")
    values = [estimate.value for _, estimate in points]
    below = [one.value - one.low if bounded(one) else nan for _, one in points]
    above = [one.high - one.value if bounded(one) else nan for _, one in points]
    axes.errorbar(
        values, [place for place, _ in points], xerr=[below, above], fmt=marker_of(role), markersize=3 if small else 4.5,
        color=colour_of(kernel, role), elinewidth=1.2, zorder=3,
    )  # fmt: skip
    for place, one in points if percent is not None else ():
        axes.annotate(
            f"{100 * one.value:.0f} %" if percent else f"{one.value:.2f}", (one.high if bounded(one) else one.value, place), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=6.5, zorder=4,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"},
        )  # fmt: skip


def finish(run: Run, figure: Figure, marks: dict[str, tuple[str, Role]], what: str) -> None:
    """Title and legend; `marks` are kernels and roles by the text of the legend."""
    from matplotlib.lines import Line2D

    letters = int(_TITLE_LETTERS * figure.get_figwidth())
    said = "\n".join(textwrap.fill(line, letters) for line in (f"{headline(run)}: {what}", sampling(run)))
    figure.suptitle(escape.picture(said), fontsize=10)
    handles = []
    for label, (kernel, role) in marks.items():
        text = escape.picture(escape.one_line(label, 40))
        handles.append(Line2D([], [], linestyle="", marker=marker_of(role), color=colour_of(kernel, role), label=text))
    columns = max(1, min(len(marks), int(figure.get_figwidth() / 1.7)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def case_label(run: Run, key: str, sep: str = "\n") -> str:
    """A case's name, after its suite's where several cases have that name, and its shape."""
    summary = next((summary for summary in run.cases if summary.case.key == key), None)
    if summary is None:
        return escape.picture(escape.one_line(key, _LABEL_LETTERS))
    same_name = sum(other.case.name == summary.case.name for other in run.cases) > 1
    parts = (key if same_name else summary.case.name, summary.shape)
    return escape.picture(sep.join(escape.one_line(part, _LABEL_LETTERS) for part in parts))
