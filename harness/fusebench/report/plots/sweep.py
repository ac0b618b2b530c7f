"""Pictures of sweeps: time and speedup against the parameter that a case sweeps over, one line per kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...schema import Case, Estimate, Result, Run, Status
from .. import escape
from ..wording import bounded, short_kernel
from .palette import ROLE_ORDER, colour_of, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_VALUES = 2
"""Values of the parameter that make a line."""


class Sweep(NamedTuple):
    """The cases that one case of a suite file stands for."""

    suite: str
    name: str
    """Of the case in the suite file."""
    op: str
    parameter: str
    cases: dict[str, float]
    """Values of the parameter by the name of the case, in order of the values."""


def sweeps_of(run: Run) -> list[Sweep]:
    """The sweeps over a number that `run` holds: cases named `NAME_VALUE` that differ in that one parameter alone."""
    groups: dict[tuple[str, str, str, str, str], dict[str, float]] = {}
    for case in (summary.case for summary in run.cases):
        for parameter, value in case.params.items():
            suffix = f"_{value}"
            if isinstance(value, int | float) and not isinstance(value, bool) and case.name.endswith(suffix):
                key = (case.suite, case.name.removesuffix(suffix), case.op, parameter, _others(case, parameter))
                groups.setdefault(key, {})[case.name] = value
    found = []
    for (suite, name, op, parameter, _), cases in groups.items():
        if len(cases) >= FEWEST_VALUES:
            found.append(Sweep(suite, name, op, parameter, dict(sorted(cases.items(), key=lambda one: one[1]))))
    return found


def _others(case: Case, parameter: str) -> str:
    return repr(sorted((name, value) for name, value in case.params.items() if name != parameter))


def sweep_figure(run: Run, sweep: Sweep) -> Figure:
    """Time in microseconds above speedup over the baseline, both against the parameter, with intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    title = f"{sweep.suite}:{sweep.name} · {sweep.op} over {sweep.parameter} · {run.environment.device_name}"
    figure.suptitle(escape.picture(title), fontsize=10)
    above, below = figure.subplots(2, 1, sharex=True)
    timed = [
        result
        for result in run.results
        if result.suite == sweep.suite and result.case in sweep.cases and result.status is Status.MEASURED and not result.covers
    ]
    order = {role: place for place, role in enumerate(ROLE_ORDER)}
    for kernel in sorted({result.kernel: result.role for result in timed}.items(), key=lambda one: (order[one[1]], one[0])):
        of_kernel = [result for result in timed if result.kernel == kernel[0]]
        _line(above, sweep, of_kernel, [one.measurement.time_us if one.measurement else None for one in of_kernel])
        _line(below, sweep, of_kernel, [one.measurement.speedup if one.measurement else None for one in of_kernel])
    above.set_ylabel("time, us")
    above.set_yscale("log")
    above.yaxis.set_major_formatter("{x:g}")
    above.yaxis.set_minor_formatter("{x:g}")
    below.set_ylabel("speedup over the baseline")
    below.axhline(1.0, color="#888888", linewidth=1)
    values = list(sweep.cases.values())
    below.set_xlabel(escape.picture(sweep.parameter))
    if min(values) > 0:
        below.set_xscale("log", base=2)
    below.set_xticks(values, [f"{value:g}" for value in values])
    below.minorticks_off()
    for axes in (above, below):
        axes.grid(visible=True, alpha=0.3)
    if timed:
        above.legend(fontsize=8)
    else:
        above.text(0.5, 0.5, "nothing was measured", ha="center", transform=above.transAxes)
    return figure


def _line(axes: Axes, sweep: Sweep, results: Sequence[Result], estimates: Sequence[Estimate | None]) -> None:
    """One kernel's line; a value that was not measured is a gap, not a bridge."""
    by_case = {result.case: estimate for result, estimate in zip(results, estimates, strict=True)}
    found = [by_case.get(case) for case in sweep.cases]
    if not any(found):
        return
    first = results[0]
    nan = float("nan")
    style: dict[str, Any] = {
        "color": colour_of(first.kernel, first.role),
        "marker": marker_of(first.role),
        "label": escape.picture(short_kernel(first.kernel)),
    }
    low = [one.value - one.low if one is not None and bounded(one) else nan for one in found]
    high = [one.high - one.value if one is not None and bounded(one) else nan for one in found]
    axes.errorbar(
        list(sweep.cases.values()), [one.value if one is not None else nan for one in found], yerr=[low, high], capsize=3, **style
    )
