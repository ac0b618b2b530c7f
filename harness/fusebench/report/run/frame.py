"""A run as one table: a row per kernel and case, for pandas, spreadsheets and plots of a person's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schema import CaseSummary, Estimate, Result, Run
from .. import escape
from ..wording import error_over_split
from .document import ends, finite

if TYPE_CHECKING:
    import pandas as pd

PARAMETER = "param."
"""Precedes the name of a case's parameter where it is a column."""


def load_run(folder: str | Path) -> pd.DataFrame:
    """The run in `folder` as a table, a row per kernel and case in the run's order.

    Times are microseconds, speedups are over the case's baseline, and `sol` is the share of the speed of light.  `*_low` and `*_high` are
    the ends of the interval.  Every parameter of a case is a column `param.NAME`.  A figure that was not measured is NaN.

    Raises:
        RunRecordError: the folder holds no run that can be read.
    """
    from ...store.run_folder import read_run

    return run_frame(read_run(Path(folder)))


def run_frame(run: Run) -> pd.DataFrame:
    """As `load_run`, of a record."""
    import pandas as pd

    run = escape.cleaned(run)
    summaries = {summary.case.key: summary for summary in run.cases}
    return pd.DataFrame([_row(result, summaries.get(result.case_key)) for result in run.results])


def run_csv(run: Run) -> str:
    """`run_frame` as CSV.  A text that a spreadsheet would take for a formula follows an apostrophe, which a spreadsheet does not show."""
    frame = run_frame(run)
    for name in frame.select_dtypes(exclude="number"):
        frame[name] = frame[name].map(lambda value: f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value)
    return str(frame.to_csv(index=False))


_FORMULA = ("=", "+", "@", "\t")
"""Starts of a formula.  A minus is not among them: reasons start with a change such as `-5.37 %`."""


def _row(result: Result, summary: CaseSummary | None) -> dict[str, Any]:
    timing, verdict = result.measurement, result.verdict
    parameters = {f"{PARAMETER}{name}": value for name, value in summary.case.params.items()} if summary is not None else {}
    return {
        "suite": result.suite,
        "case": result.case,
        "op": result.op,
        "kernel": result.kernel,
        "role": str(result.role),
        "status": str(result.status),
        "shape": result.shape,
        **_figure("time_us", timing.time_us if timing is not None else None),
        **_figure("speedup", timing.speedup if timing is not None else None),
        "sol": finite(timing.sol) if timing is not None else None,
        "peak_share": finite(timing.peak_share) if timing is not None else None,
        "gb_per_s": finite(timing.gb_per_s) if timing is not None else None,
        "minimum_bytes": summary.minimum_bytes if summary is not None else None,
        "error_over_split": finite(error_over_split(result.accuracy)),
        "verdict": str(verdict.kind) if verdict is not None else "",
        "reason": (verdict.reason if verdict is not None else "") or result.reason,
        **parameters,
    }


def _figure(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    low, high = ends(estimate) or (None, None)
    return {name: finite(estimate.value) if estimate is not None else None, f"{name}_low": low, f"{name}_high": high}
