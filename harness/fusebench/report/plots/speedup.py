"""Pictures of a run: speedup with intervals beside share of the speed of light, case by case, and that share against bytes (roofline).

Cases are rows, the largest speedup of a fused kernel first, so that labels stay legible from one case to 150.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...schema import Estimate, Result, Role, Run
from .. import escape
from ..versions import version_steps
from ..wording import short_kernel
from .palette import colour_of, marker_of
from .parts import (
    MOST_LABELLED_CASES,
    finish,
    kernels_of,
    mark,
    nothing_measured,
    percent_ticks,
    picture_file,
    timed_results,
    two_panels,
)
from .sweep import sweep_figure, sweeps_of
from .versions import versions_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def speedup_png(run: Run) -> bytes:
    """Speedups and shares of the speed of light as PNG bytes.  A run without measurements gives a picture that says so."""
    return picture_file(_speedups(escape.cleaned(run)), "png")


def run_pictures(run: Run) -> dict[str, bytes]:
    """File names and contents, each picture as PNG and as SVG: `speedup`, `roofline`, a `sweep_…` per sweep, and `versions` where a case
    timed two versions of a kernel."""
    run = escape.cleaned(run)
    figures = {"speedup": _speedups(run), "roofline": _roofline(run)}
    if steps := version_steps(run):
        figures["versions"] = versions_figure(run, steps)
    figures |= {escape.file_name(f"sweep_{one.suite}_{one.name}_{one.parameter}"): sweep_figure(run, one) for one in sweeps_of(run)}
    return {f"{name}.{form}": picture_file(figure, form) for name, figure in figures.items() for form in ("png", "svg")}


def _speedups(run: Run) -> Figure:
    measured = timed_results(run)
    if not measured:
        return nothing_measured(run)
    cases, kernels = _by_effect(measured), kernels_of(measured)
    figure, left, right, each = two_panels(run, cases)
    for axes, estimates in ((left, _speedup_estimates(measured)), (right, _share_estimates(measured))):
        for index, (kernel, role) in enumerate(kernels.items()):
            offset = (index - (len(kernels) - 1) / 2) * 0.8 / max(1, len(kernels))
            points = [(place + offset, estimates[case, kernel]) for place, case in enumerate(cases) if (case, kernel) in estimates]
            percent = axes is right if len(cases) <= MOST_LABELLED_CASES else None
            mark(axes, points, kernel, role, small=each < 0.2, percent=percent)
        axes.set_xlim(left=0.0)
    left.set_xlabel(_speedup_label(run))
    right.set_xlabel("share of the speed of light")
    right.xaxis.set_major_formatter(percent_ticks())
    finish(run, figure, {kernel: (kernel, role) for kernel, role in kernels.items()}, "speedup and share of the speed of light, by case")
    return figure


def _roofline(run: Run) -> Figure:
    """Share of the speed of light against the case's minimum bytes: how near to the limit kernels come at which size."""
    from matplotlib.figure import Figure

    measured, sizes = timed_results(run), {summary.case.key: summary.minimum_bytes for summary in run.cases}
    kernels = kernels_of(measured)
    points = {
        kernel: [
            (sizes[one.case_key], one.measurement.sol)
            for one in measured
            if short_kernel(one.kernel) == kernel and one.measurement is not None and one.measurement.sol and sizes.get(one.case_key)
        ]
        for kernel in kernels
    }
    if not any(points.values()):
        return nothing_measured(run)
    figure = Figure(figsize=(11.0, 6.0), layout="constrained")
    axes = figure.subplots()
    for kernel, role in kernels.items():
        if points[kernel]:
            across, up = zip(*sorted(points[kernel]), strict=True)
            axes.plot(across, up, marker_of(role), color=colour_of(kernel, role), markersize=5, alpha=0.8, zorder=3)
    axes.axhline(1.0, color="#222222", linewidth=1, linestyle="--", zorder=2)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(percent_ticks())
    axes.set_xlabel("minimum bytes of the case")
    axes.set_ylabel("share of the speed of light")
    axes.grid(color="#e4e4e4", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    shown = {kernel: (kernel, role) for kernel, role in kernels.items() if points[kernel]}
    finish(run, figure, shown, "share of the speed of light against bytes")
    return figure


def _by_effect(measured: list[Result]) -> list[str]:
    """Case keys, the one with the largest speedup of a fused kernel first; cases without one last, in the run's order."""
    best = dict.fromkeys((result.case_key for result in measured), 0.0)
    for result in measured:
        if result.role is Role.FUSED and result.measurement is not None and result.measurement.speedup is not None:
            best[result.case_key] = max(best[result.case_key], result.measurement.speedup.value)
    return sorted(best, key=lambda case: -best[case])


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


def _speedup_label(run: Run) -> str:
    baselines = list(dict.fromkeys(short_kernel(summary.baseline) for summary in run.cases if summary.baseline))
    return f"speedup over {baselines[0]}" if len(baselines) == 1 else "speedup over the split chain"
