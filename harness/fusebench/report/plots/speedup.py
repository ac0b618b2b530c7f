"""speedup.png: speedup over the baseline above, share of the speed of light below, per case and kernel.

Up to `MOST_BARS_CASES` cases are drawn as grouped bars; more become rows of markers, which stay readable at forty cases.
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS_CASES = 8

_COLOURS = {
    # Okabe and Ito's palette, told apart by colour-blind readers; greys for what models run today.
    Role.SPLIT: ("#9a9a9a", "#c8c8c8", "#6e6e6e"),
    Role.COMPILED: ("#e69f00", "#f0e442"),
    Role.FUSED: ("#56b4e9", "#0072b2", "#009e73", "#00415f", "#7fd1ae"),
    Role.PEER: ("#cc79a7", "#d55e00"),
}
_ROLE_ORDER = (Role.SPLIT, Role.COMPILED, Role.PEER, Role.FUSED)
_TITLE_LETTERS = 13
"""Letters of the title per inch; the letters of `sampling` average 14.6."""
_ERROR_BAR = {"elinewidth": 1.0, "ecolor": "#222222", "capsize": 2}


def speedup_png(run: Run) -> bytes:
    """The picture as PNG bytes.  A run without measurements gives a picture that says so."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Both axes compare whole ops: a kernel that covers a part of one has no place on either.
    measured = [
        result for result in run.results if result.status is Status.MEASURED and result.measurement is not None and not result.covers
    ]
    if not measured:
        figure = Figure(figsize=(8, 2), layout="constrained")
        figure.text(0.5, 0.5, f"{headline(run)}\nnothing was measured", ha="center", va="center")
    elif len(_cases(measured)) <= MOST_BARS_CASES:
        figure = _bars(run, measured)
    else:
        figure = _rows(run, measured)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    # Without the software's version in the file, the same run gives the same bytes.
    figure.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
    return buffer.getvalue()


def _bars(run: Run, measured: list[Result]) -> Figure:
    from matplotlib.figure import Figure

    cases, kernels, colours = _cases(measured), _kernels(measured), _palette(measured)
    each = min(max(1.1, 0.24 * len(kernels) + 0.35), 12.0 / len(cases))
    figure = Figure(figsize=(max(7.5, 1.6 + len(cases) * each), 7.0), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    for axes, figures in ((top, _speedups(measured)), (bottom, _shares(measured))):
        shown = [kernel for kernel in kernels if any((case, kernel) in figures for case in cases)]
        width = 0.84 / max(1, len(shown))
        for index, kernel in enumerate(shown):
            for place, case in enumerate(cases):
                estimate = figures.get((case, kernel))
                if estimate is None:
                    continue
                at = place - 0.42 + width * (index + 0.5)
                axes.bar(at, estimate.value, width * 0.92, color=colours[kernel], yerr=_spread(estimate), error_kw=_ERROR_BAR, zorder=2)
                if len(cases) * len(shown) <= 36:
                    text = f"{estimate.value:.2f}" if axes is top else f"{estimate.value:.0%}"
                    high = estimate.high if bounded(estimate) else estimate.value
                    axes.annotate(text, (at, high), (0, 2), textcoords="offset points", ha="center", fontsize=7, zorder=4)
        axes.axhline(1.0, color="#222222", linewidth=1, linestyle="--", zorder=3)
        axes.grid(axis="y", color="#e4e4e4", zorder=0)
        axes.margins(y=0.1)
    top.set_ylabel(_speedup_label(run))
    bottom.set_ylabel("share of the speed of light")
    bottom.yaxis.set_major_formatter(_percent())
    bottom.set_xticks(range(len(cases)), [_case_label(run, case) for case in cases], fontsize=8)
    bottom.set_xlim(-0.6, len(cases) - 0.4)
    if each < 1.5:
        bottom.tick_params(axis="x", labelrotation=20)
    _finish(run, figure, (top, bottom), kernels, colours)
    return figure


def _rows(run: Run, measured: list[Result]) -> Figure:
    from matplotlib.figure import Figure

    cases, kernels, colours = _cases(measured), _kernels(measured), _palette(measured)
    figure = Figure(figsize=(11.0, 2.2 + 0.36 * len(cases)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, figures in ((left, _speedups(measured)), (right, _shares(measured))):
        for index, kernel in enumerate(kernels):
            offset = (index - (len(kernels) - 1) / 2) * 0.7 / max(1, len(kernels))
            for place, case in enumerate(cases):
                estimate = figures.get((case, kernel))
                if estimate is not None:
                    axes.errorbar(
                        estimate.value,
                        place + offset,
                        xerr=_spread(estimate),
                        fmt="o",
                        markersize=4,
                        color=colours[kernel],
                        elinewidth=1.2,
                        zorder=3,
                    )
        for place in range(0, len(cases), 2):
            axes.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0)
        axes.axvline(1.0, color="#222222", linewidth=1, linestyle="--", zorder=2)
        axes.grid(axis="x", color="#e0e0e0", zorder=1)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlim(left=0.0)
    left.set_yticks(range(len(cases)), [_case_label(run, case, sep="  ") for case in cases], fontsize=8)
    left.set_xlabel(_speedup_label(run))
    right.set_xlabel("share of the speed of light")
    right.xaxis.set_major_formatter(_percent())
    _finish(run, figure, (left, right), kernels, colours)
    return figure


def _finish(run: Run, figure: Figure, axes: tuple[Axes, Axes], kernels: list[str], colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    # Pictures of one or two cases are narrower than what is to be said of cases that were measured in several processes.
    said = textwrap.fill(sampling(run), int(_TITLE_LETTERS * figure.get_figwidth()))
    figure.suptitle(escape.picture(f"{headline(run)}\n{said}"), fontsize=10)
    figure.legend(
        handles=[Patch(color=colours[kernel], label=escape.picture(kernel)) for kernel in kernels],
        loc="outside lower center",
        ncols=max(1, min(len(kernels), int(figure.get_figwidth() / 1.7))),
        fontsize=8,
        frameon=False,
    )


def _cases(measured: list[Result]) -> list[str]:
    return list(dict.fromkeys(result.case_key for result in measured))


def _kernels(measured: list[Result]) -> list[str]:
    """Names without the op, which a case has one of: kernels of one name and version share a colour over a suite's ops."""
    roles = {short_kernel(result.kernel): result.role for result in measured}
    return sorted(roles, key=lambda kernel: _ROLE_ORDER.index(roles[kernel]))


def _palette(measured: list[Result]) -> dict[str, str]:
    roles = {short_kernel(result.kernel): result.role for result in measured}
    taken = dict.fromkeys(Role, 0)
    colours = {}
    for kernel in _kernels(measured):
        choices = _COLOURS[roles[kernel]]
        colours[kernel] = choices[taken[roles[kernel]] % len(choices)]
        taken[roles[kernel]] += 1
    return colours


def _speedups(measured: list[Result]) -> dict[tuple[str, str], Estimate]:
    return {
        (result.case_key, short_kernel(result.kernel)): result.measurement.speedup
        for result in measured
        if result.measurement is not None and result.measurement.speedup is not None
    }


def _shares(measured: list[Result]) -> dict[tuple[str, str], Estimate]:
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


def _percent() -> str:
    return "{x:.0%}"
