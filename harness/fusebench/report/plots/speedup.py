"""Pictures of a run: speedup with intervals beside share of the speed of light, case by case, and that share against bytes (roofline).

Cases are rows, the largest speedup of a fused kernel first, so that labels stay legible from one case to 150.
"""

from __future__ import annotations

import io
import math
import textwrap
from typing import TYPE_CHECKING

from ...schema import Estimate, Result, Role, Run, Status
from .. import escape
from ..summary import headline, sampling
from ..wording import bounded, short_kernel
from .palette import ROLE_ORDER, colour_of, marker_of
from .sweep import sweep_figure, sweeps_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELLED_CASES = 8
"""Cases up to which every figure is written beside its mark."""

_DPI = 140
_TITLE_LETTERS = 13
"""Letters of the title in an inch: it takes 14.6 of those that `sampling` is made of."""
_HEIGHTS = ((MOST_LABELLED_CASES, 0.95), (40, 0.36), (math.inf, 0.19))
"""Inches of a row, by the number of cases up to which they hold."""


def speedup_png(run: Run) -> bytes:
    """Speedups and shares of the speed of light as PNG bytes.  A run without measurements gives a picture that says so."""
    return _written(_speedups(escape.cleaned(run)), "png")


def run_pictures(run: Run) -> dict[str, bytes]:
    """File names and contents: `speedup`, `roofline` and a `sweep_…` per sweep, each as PNG and as SVG."""
    from ..pages import file_name  # which imports this module

    run = escape.cleaned(run)
    figures = {"speedup": _speedups(run), "roofline": _roofline(run)}
    figures |= {file_name(f"sweep_{one.suite}_{one.name}_{one.parameter}"): sweep_figure(run, one) for one in sweeps_of(run)}
    return {f"{name}.{form}": _written(figure, form) for name, figure in figures.items() for form in ("png", "svg")}


def _written(figure: Figure, form: str) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    # Without the software's version, the date and random ids in the file, the same run gives the same bytes.
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.hashsalt": "fusebench"}):
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def _measured(run: Run) -> list[Result]:
    """Results with a place on the axes, which compare whole ops: a kernel that covers a part of one has none."""
    return [result for result in run.results if result.status is Status.MEASURED and result.measurement is not None and not result.covers]


def _speedups(run: Run) -> Figure:
    from matplotlib.figure import Figure

    measured = _measured(run)
    if not measured:
        return _nothing(run)
    figures = (_speedup_estimates(measured), _share_estimates(measured))
    cases, kernels = _by_effect(measured), _kernels(measured)
    each = next(inches for most, inches in _HEIGHTS if len(cases) <= most)
    figure = Figure(figsize=(11.0, max(4.6, 2.2 + each * len(cases))), layout="constrained", dpi=_DPI)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, estimates in ((left, figures[0]), (right, figures[1])):
        for index, (kernel, role) in enumerate(kernels.items()):
            offset = (index - (len(kernels) - 1) / 2) * 0.8 / max(1, len(kernels))
            for place, case in enumerate(cases):
                estimate = estimates.get((case, kernel))
                if estimate is None:
                    continue
                axes.errorbar(
                    estimate.value, place + offset, xerr=_spread(estimate), fmt=marker_of(role), markersize=4.5 if each > 0.2 else 3,
                    color=colour_of(kernel, role), elinewidth=1.2, zorder=3,
                )  # fmt: skip
                if len(cases) <= MOST_LABELLED_CASES:
                    text = f"{estimate.value:.2f}" if axes is left else f"{estimate.value:.0%}"
                    high = estimate.high if bounded(estimate) else estimate.value
                    at = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 6.5, "zorder": 4}
                    axes.annotate(text, (high, place + offset), bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"}, **at)
        for place in range(0, len(cases), 2):
            axes.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0)
        axes.axvline(1.0, color="#222222", linewidth=1, linestyle="--", zorder=2)
        axes.grid(axis="x", color="#e0e0e0", zorder=1)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlim(left=0.0)
        axes.margins(x=0.08)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    names = [_case_label(run, case, sep="\n" if len(cases) <= MOST_LABELLED_CASES else "  ") for case in cases]
    left.set_yticks(range(len(cases)), names, fontsize=8 if each > 0.2 else 6)
    left.set_xlabel(_speedup_label(run))
    right.set_xlabel("share of the speed of light")
    right.xaxis.set_major_formatter("{x:.0%}")
    _finish(run, figure, kernels, "speedup and share of the speed of light, by case")
    return figure


def _roofline(run: Run) -> Figure:
    """Share of the speed of light against the case's minimum bytes: how near to the limit kernels come at which size."""
    from matplotlib.figure import Figure

    measured, sizes = _measured(run), {summary.case.key: summary.minimum_bytes for summary in run.cases}
    kernels = _kernels(measured)
    points = {
        kernel: [
            (sizes[one.case_key], one.measurement.sol)
            for one in measured
            if short_kernel(one.kernel) == kernel and one.measurement is not None and one.measurement.sol and sizes.get(one.case_key)
        ]
        for kernel in kernels
    }
    if not any(points.values()):
        return _nothing(run)
    figure = Figure(figsize=(11.0, 6.0), layout="constrained")
    axes = figure.subplots()
    for kernel, role in kernels.items():
        if points[kernel]:
            across, up = zip(*sorted(points[kernel]), strict=True)
            axes.plot(across, up, marker_of(role), color=colour_of(kernel, role), markersize=5, alpha=0.8, zorder=3)
    axes.axhline(1.0, color="#222222", linewidth=1, linestyle="--", zorder=2)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("minimum bytes of the case")
    axes.set_ylabel("share of the speed of light")
    axes.grid(color="#e4e4e4", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    _finish(run, figure, {kernel: role for kernel, role in kernels.items() if points[kernel]}, "share of the speed of light against bytes")
    return figure


def _nothing(run: Run) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2), layout="constrained")
    figure.text(0.5, 0.5, escape.picture(f"{headline(run)}\nnothing was measured"), ha="center", va="center")
    return figure


def _finish(run: Run, figure: Figure, kernels: dict[str, Role], what: str) -> None:
    from matplotlib.lines import Line2D

    said = textwrap.fill(sampling(run), int(_TITLE_LETTERS * figure.get_figwidth()))
    figure.suptitle(escape.picture(f"{headline(run)}: {what}\n{said}"), fontsize=10)
    marks = [
        Line2D([], [], linestyle="", marker=marker_of(role), color=colour_of(kernel, role), label=escape.picture(kernel))
        for kernel, role in kernels.items()
    ]
    columns = max(1, min(len(kernels), int(figure.get_figwidth() / 1.7)))
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def _by_effect(measured: list[Result]) -> list[str]:
    """Case keys, the one with the largest speedup of a fused kernel first; cases without one last, in the run's order."""
    best = dict.fromkeys((result.case_key for result in measured), 0.0)
    for result in measured:
        if result.role is Role.FUSED and result.measurement is not None and result.measurement.speedup is not None:
            best[result.case_key] = max(best[result.case_key], result.measurement.speedup.value)
    return sorted(best, key=lambda case: -best[case])


def _kernels(measured: list[Result]) -> dict[str, Role]:
    """Names without the op, which a case has one of, and their roles: kernels of one name and version share a mark over a suite's ops."""
    roles = {short_kernel(result.kernel): result.role for result in measured}
    return dict(sorted(roles.items(), key=lambda item: ROLE_ORDER.index(item[1])))


def _speedup_estimates(measured: list[Result]) -> dict[tuple[str, str], Estimate]:
    return {
        (result.case_key, short_kernel(result.kernel)): result.measurement.speedup
        for result in measured
        if result.measurement is not None and result.measurement.speedup is not None
    }


def _share_estimates(measured: list[Result]) -> dict[tuple[str, str], Estimate]:
    """Shares of SOL, with the relative spread of the kernel's own time: the record holds no interval for the share itself."""
    found = {}
    for result in measured:
        if result.measurement is not None and result.measurement.sol is not None:
            sol, time = result.measurement.sol, result.measurement.time_us
            high = sol * time.value / time.low if time.low > 0 else math.inf
            low = sol * time.value / time.high if time.high > 0 else 0.0
            found[result.case_key, short_kernel(result.kernel)] = Estimate(sol, low, high)
    return found


def _spread(estimate: Estimate) -> list[list[float]] | None:
    return [[estimate.value - estimate.low], [estimate.high - estimate.value]] if bounded(estimate) else None


def _speedup_label(run: Run) -> str:
    baselines = list(dict.fromkeys(short_kernel(summary.baseline) for summary in run.cases if summary.baseline))
    return f"speedup over {baselines[0]}" if len(baselines) == 1 else "speedup over the split chain"


def _case_label(run: Run, key: str, sep: str = "\n") -> str:
    summary = next((summary for summary in run.cases if summary.case.key == key), None)
    if summary is None:
        return key
    same_name = sum(other.case.name == summary.case.name for other in run.cases) > 1
    return escape.picture(f"{key if same_name else summary.case.name}{sep}{summary.shape}")
