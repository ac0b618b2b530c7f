"""The weighted view of a suite: sum(weight x baseline time) / sum(weight x kernel time), and their difference.

Weights are launches per denoise step, so the quotient is the speedup of a step's whole time in these launches, and the difference is the
time that a step saves. Each figure covers only the cases where both the kernel and the baseline were measured, and states their number and
share of the weight: otherwise a kernel would look better by declining its worst case. Cases with a variant stand for another way to run the
step, and the sums leave them out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum

from ..schema import CaseSummary, Result, Role, Status, SuiteSummary

BEST_FUSED = "best_fused"
"""Key of the figure that takes, per case, the fastest measured fused kernel."""


Term = tuple[float, float, float]
"""(weight, baseline time, kernel time), times in one unit, weights positive."""


def weighted_speedup(terms: Iterable[Term]) -> float:
    """sum(weight x baseline time) / sum(weight x kernel time).

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


def saved(terms: Iterable[Term]) -> float:
    """sum(weight x (baseline time - kernel time)), in the terms' unit; 0 for no terms."""
    return fsum(weight * (baseline - kernel) for weight, baseline, kernel in terms)


def best_fused(results: Iterable[Result]) -> Result | None:
    """The fastest measured fused kernel among the `results` of one case."""
    return best_of(Role.FUSED, results)


def best_of(role: Role, results: Iterable[Result]) -> Result | None:
    """The fastest measured kernel of `role` that computes the whole op, among the `results` of one case."""
    found = [(time, result) for result in results if result.role is role and not result.covers and (time := _time(result)) is not None]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def best_terms(role: Role, suite: str, cases: Iterable[CaseSummary], results: Iterable[Result]) -> list[Term]:
    """A term, in microseconds, for each case of the suite of which the baseline and a kernel of `role` were measured: the best one's."""
    by_case: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_case[result.case_key].append(result)
    terms = []
    for summary in cases:
        rows = by_case[summary.case.key]
        baseline = next((time for row in rows if row.kernel == summary.baseline and (time := _time(row)) is not None), None)
        best = best_of(role, rows)
        if summary.case.suite == suite and not summary.case.variant and baseline is not None and best is not None:
            terms.append((summary.case.weight, baseline, _time(best) or 0.0))
    return terms


def suite_summaries(cases: Sequence[CaseSummary], results: Sequence[Result]) -> list[SuiteSummary]:
    """One summary per suite, in the order in which `cases` first name them.

    Kernels are named without their op (`fused_triton@2`). A case's own baseline is left out: its speedup is 1 by definition.
    """
    by_case: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_case[result.case_key].append(result)
    weights: dict[str, list[float]] = {}
    terms: dict[str, dict[str, list[Term]]] = defaultdict(lambda: defaultdict(list))
    for summary in cases:
        case = summary.case
        counted = weights.setdefault(case.suite, [])
        if case.variant:
            continue
        counted.append(case.weight)
        rows = by_case[case.key]
        baseline = next((time for row in rows if row.kernel == summary.baseline and (time := _time(row)) is not None), None)
        if baseline is None:
            continue
        for row in rows:
            time = _time(row) if not row.covers else None  # a part's time does not belong in a sum over the op
            if time is not None and row.kernel != summary.baseline:
                terms[case.suite][_short(row.kernel)].append((case.weight, baseline, time))
        best = best_fused(rows)
        if best is not None:
            terms[case.suite][BEST_FUSED].append((case.weight, baseline, _time(best) or 0.0))
    return [_summary(name, counted, terms[name]) for name, counted in weights.items()]


def _summary(name: str, weights: Sequence[float], terms: Mapping[str, Sequence[Term]]) -> SuiteSummary:
    return SuiteSummary(
        name=name,
        cases=len(weights),
        weighted_speedup={kernel: weighted_speedup(found) for kernel, found in terms.items()},
        covered_cases={kernel: len(found) for kernel, found in terms.items()},
        covered_weight={kernel: fsum(weight for weight, _, _ in found) / fsum(weights) for kernel, found in terms.items()},
        baseline_us_per_step={kernel: fsum(weight * above for weight, above, _ in found) for kernel, found in terms.items()},
        saved_us_per_step={kernel: saved(found) for kernel, found in terms.items()},
    )


def _time(result: Result) -> float | None:
    if result.status is not Status.MEASURED or result.measurement is None or result.suspicious:
        return None
    return result.measurement.time_us.value


def _short(kernel: str) -> str:
    return kernel.partition("/")[2] or kernel
