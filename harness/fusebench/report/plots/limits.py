"""The picture of a run's shares of the limit: a row per op, a mark per case in the colour of its best fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schema import Role, Run
from .. import escape
from ..run.limits import LEVELS, at_least, by_op, percent, reached_cases
from ..wording import count, short_kernel
from .palette import colour_of, marker_of
from .parts import finish, nothing_measured, percent_ticks, picture_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT = 0.5
"""Least share on the axis; lower ones are drawn at its end."""
_STEPS = 7
"""Heights within a row, so that marks of like shares stay apart."""


def limits_png(run: Run) -> bytes:
    """The distribution of the shares as PNG bytes.  A run without shares gives a picture that says so."""
    return picture_file(_figure(escape.cleaned(run)), "png")


def _figure(run: Run) -> Figure:
    from matplotlib.figure import Figure

    groups = by_op(reached_cases(run))
    if not groups:
        return nothing_measured(run)
    figure = Figure(figsize=(11.0, 1.9 + 0.6 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for level in (*LEVELS, 1.0):
        axes.axvline(level, color="#222222" if level == 1.0 else "#aaaaaa", linewidth=1, linestyle="--", zorder=1)
    kernels: dict[str, Role] = {}
    for row, cases in enumerate(groups.values()):
        for place, one in enumerate(cases):
            kernel = short_kernel(one.best.kernel)
            kernels[kernel] = one.best.role
            height = row + 0.08 * (place * 3 % _STEPS - _STEPS // 2)
            mark, colour = marker_of(one.best.role), colour_of(kernel, one.best.role)
            axes.plot(max(LEFT, one.share), height, mark, color=colour, markersize=4.5, alpha=0.8, zorder=3)
    labels = [f"{op}\n{count(len(cases), 'case')}, {percent(at_least(cases, 0.9))} at 90 % or more" for op, cases in groups.items()]
    axes.set_yticks(range(len(groups)), [escape.picture(label) for label in labels], fontsize=8)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(left=LEFT - 0.01)
    axes.xaxis.set_major_formatter(percent_ticks())
    axes.set_xlabel(f"share of the limit; {100 * LEFT:.0f} % stands for less, too", fontsize=8)
    axes.grid(axis="y", color="#eeeeee", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)
    finish(run, figure, {kernel: (kernel, role) for kernel, role in sorted(kernels.items())}, "share of the limit, by op")
    return figure
