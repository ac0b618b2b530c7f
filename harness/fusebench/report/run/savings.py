"""Sums over a suite: weighted speedup, microseconds saved per denoise step, cases where torch.compile beats the fused kernels, and how
close dispatch comes to the best of them.

The saving is sum(weight x (baseline time - best fused time)).  Only suites with a weight other than 1 state launches per denoise step
(see docs/suites.md); other suites get no saving, because their sum would mean nothing.
"""

from __future__ import annotations

import msgspec

from ...schema import Role, Run, SuiteSummary
from ...stats.weighted import BEST_FUSED, best_fused, best_of, best_terms
from ...stats.weighted import saved as saved_us
from ...verdict.dispatch_choice import CLOSE, FAR, dispatch_ratios, shares
from ..wording import DASH, cases_with_results, count, microseconds, share, short_kernel

SAVING_HEADER = ("suite", "baseline us", "best fused us", "saved us", "saved", "compiled saves us", "cases covered", "launches covered")

SHOWN_CASES = 8
"""Cases that are named, those with the most to gain first."""


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one suite, in microseconds per denoise step, over the cases where both kernels were measured."""

    suite: str
    baseline_us: float
    saved_us: float
    covered_cases: int
    cases: int
    covered_weight: float
    """Share of the suite's launches."""
    compiled: str
    """Microseconds that torch.compile saves, by its best kernel on each case; a star where it covers other cases, a dash where it was not
    measured."""

    @property
    def complete(self) -> bool:
        return self.covered_cases == self.cases


def savings(run: Run) -> list[Saving]:
    """One entry for every suite of the run that says how often a step launches its cases and has a fused kernel with a time."""
    found = [saving_of(run, suite) for suite in run.suites]
    return [saving for saving in found if saving is not None]


def saving_of(run: Run, suite: SuiteSummary) -> Saving | None:
    """The saving of one suite of the run; None if it states no launches per denoise step, or no fused kernel has a time."""
    weighted = any(one.case.suite == suite.name and one.case.weight != 1 and not one.case.variant for one in run.cases)
    return _saving(run, suite) if weighted and BEST_FUSED in suite.saved_us_per_step else None


def saving_lines(run: Run) -> list[str]:
    """One sentence per suite."""
    return [
        f"a denoise step of {one.suite} saves {signed(one.saved_us)} us of the baseline's {microseconds(one.baseline_us)} us "
        f"with the best fused kernels{coverage(one)}"
        for one in savings(run)
    ]


def saving_rows(run: Run) -> list[list[str]]:
    """Cells under `SAVING_HEADER`."""
    return [
        [
            one.suite,
            microseconds(one.baseline_us),
            microseconds(one.baseline_us - one.saved_us),
            signed(one.saved_us),
            share(one.saved_us / one.baseline_us),
            one.compiled,
            f"{one.covered_cases} of {one.cases}",
            share(one.covered_weight),
        ]
        for one in savings(run)
    ]


def coverage(saving: Saving) -> str:
    """` (4 of the run's 5 cases, 93.3 % of their launches)`; ` (all 5 cases of the run)` where nothing is missing."""
    if saving.complete:
        return f" (all {saving.cases} cases of the run)" if saving.cases != 1 else " (the run's one case)"
    return f" ({saving.covered_cases} of the run's {count(saving.cases, 'case')}, {share(saving.covered_weight)} of their launches)"


def signed(value_us: float) -> str:
    """Microseconds that may be negative: a fused kernel slower than the baseline costs time."""
    return f"-{microseconds(-value_us)}" if value_us < 0 else microseconds(value_us)


def _saving(run: Run, suite: SuiteSummary) -> Saving:
    covered = suite.covered_cases[BEST_FUSED]
    compiled = best_terms(Role.COMPILED, suite.name, run.cases, run.results)
    star = "" if len(compiled) == covered else "*"
    return Saving(
        suite=suite.name,
        baseline_us=suite.baseline_us_per_step[BEST_FUSED],
        saved_us=suite.saved_us_per_step[BEST_FUSED],
        covered_cases=covered,
        cases=suite.cases,
        covered_weight=suite.covered_weight[BEST_FUSED],
        compiled=signed(saved_us(compiled)) + star if compiled else DASH,
    )


def weighted_lines(run: Run) -> list[str]:
    """One line per suite that has a weighted speedup, the best fused kernel first."""
    lines = []
    for suite in run.suites:
        figures = [
            f"{'best fused' if name == 'best_fused' else name} {value:.3f}x"
            + (
                ""
                if suite.covered_cases.get(name) == suite.cases
                else f" ({suite.covered_cases.get(name, 0)} of {count(suite.cases, 'case')})"
            )
            for name, value in sorted(suite.weighted_speedup.items(), key=lambda item: (item[0] != "best_fused", -item[1]))
        ]
        if figures:
            lines.append(f"weighted speedup of {suite.name}: {', '.join(figures)}")
    return lines


def compiled_lines(run: Run) -> list[str]:
    """One line that compares the best fused kernels with torch.compile; no line unless both were measured on some case.

    A case counts as slower where the intervals of the two times do not meet.
    """
    compared = 0
    slower = []
    for summary, rows in cases_with_results(run):
        fused = best_fused(rows)
        compiled = best_of(Role.COMPILED, rows)
        if fused is None or fused.measurement is None or compiled is None or compiled.measurement is None:
            continue
        compared += 1
        ours, theirs = fused.measurement.time_us, compiled.measurement.time_us
        if ours.low > theirs.high:
            names = short_kernel(fused.kernel), short_kernel(compiled.kernel).removesuffix("@1")
            slower.append((ours.value / theirs.value, summary.case.key, *names, ours.value, theirs.value))
    if not compared:
        return []
    if not slower:
        return [f"torch.compile: the best fused kernel is at least as fast on each of {count(compared, 'case')}"]
    slower.sort(reverse=True)
    named = [f"{key} ({kernel} {ours:.2f} us, {other} {theirs:.2f} us)" for _, key, kernel, other, ours, theirs in slower[:SHOWN_CASES]]
    more = f" and {len(slower) - SHOWN_CASES} more" if len(slower) > SHOWN_CASES else ""
    return [f"torch.compile is faster than the best fused kernel on {len(slower)} of {count(compared, 'case')}: {', '.join(named)}{more}"]


def dispatch_lines(run: Run) -> list[str]:
    """One line on the time of the kernels that dispatch takes over the time of the best fused ones; no line for records without choices."""
    ratios = dispatch_ratios(run)
    if not ratios:
        return []
    close, far = shares([one.ratio for one in ratios])
    worst = max(ratios, key=lambda one: one.ratio)
    line = f"dispatch / best fused: {share(close)} of {count(len(ratios), 'case')} within {CLOSE:.2f}x, {share(far)} within {FAR:.2f}x"
    if worst.ratio > CLOSE:
        line += f"; worst {worst.ratio:.2f}x on {worst.case}: {short_kernel(worst.kernel)} instead of {short_kernel(worst.best)}"
    return [line]
