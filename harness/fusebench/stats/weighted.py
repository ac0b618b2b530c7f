"""The weighted view of a suite: sum(weight x baseline time) / sum(weight x kernel time).

Weights are launches per denoise step, so the figure is the speedup of a step's whole time in these launches.  Each figure
covers only the cases where both the kernel and the baseline were measured, and says how many those are: a kernel that declines the
case it is worst at must not look better for it unseen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..schema import CaseSummary, Result, Role, Status, SuiteSummary

BEST_FUSED = "best_fused"
"""Key of the figure that takes, per case, the fastest measured fused kernel."""


def weighted_speedup(terms: Iterable[tuple[float, float, float]]) -> float:
    """`terms` are (weight, baseline time, kernel time), times in one unit, weights positive.

    Raises:
        ValueError: no terms.
    """
    above = below = 0.0
    for weight, baseline, kernel in terms:
        above += weight * baseline
        below += weight * kernel
    if below <= 0.0:
        raise ValueError("a weighted speedup needs at least one case with a positive weight and time")
    return above / below


def best_fused(results: Iterable[Result]) -> Result | None:
    """The fastest measured fused kernel among the `results` of one case."""
    fused = [(time, result) for result in results if result.role is Role.FUSED and (time := _time(result)) is not None]
    return min(fused, key=lambda pair: pair[0])[1] if fused else None


def suite_summaries(cases: Sequence[CaseSummary], results: Sequence[Result]) -> list[SuiteSummary]:
    """One summary per suite, in the order in which `cases` first name them.

    A kernel is named without its op (`fused_triton@2`).  The case's own baseline is left out: it is 1 by definition.
    """
    by_case: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_case[result.case_key].append(result)
    counts: dict[str, int] = {}
    terms: dict[str, dict[str, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for summary in cases:
        case = summary.case
        counts[case.suite] = counts.get(case.suite, 0) + 1
        rows = by_case[case.key]
        baseline = next((time for row in rows if row.kernel == summary.baseline and (time := _time(row)) is not None), None)
        if baseline is None:
            continue
        for row in rows:
            time = _time(row)
            if time is not None and row.kernel != summary.baseline:
                terms[case.suite][_short(row.kernel)].append((case.weight, baseline, time))
        best = best_fused(rows)
        if best is not None:
            terms[case.suite][BEST_FUSED].append((case.weight, baseline, _time(best) or 0.0))
    return [
        SuiteSummary(
            name=name,
            cases=count,
            weighted_speedup={kernel: weighted_speedup(found) for kernel, found in terms[name].items()},
            covered_cases={kernel: len(found) for kernel, found in terms[name].items()},
        )
        for name, count in counts.items()
    ]


def _time(result: Result) -> float | None:
    if result.status is not Status.MEASURED or result.measurement is None:
        return None
    return result.measurement.time_us.value


def _short(kernel: str) -> str:
    return kernel.partition("/")[2] or kernel
