"""What a denoise step saves, per suite: sum(weight x (baseline time - best fused time)), in the words of every report.

A suite says how often a step launches its cases where its weights differ from 1 (see docs/suites.md); of other suites the sum would
be a number without a meaning, and is not shown.
"""

from __future__ import annotations

import msgspec

from ..schema import Run, SuiteSummary
from ..stats.weighted import BEST_FUSED
from .wording import DASH, count, microseconds, share

SAVING_HEADER = ("suite", "baseline us", "best fused us", "saved us", "saved", "compiled saves us", "cases covered", "launches covered")

_COMPILED = "compiled@1"


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
    """What torch.compile saves, in the same unit, with a star where it covers other cases; a dash where it was not measured."""

    @property
    def complete(self) -> bool:
        return self.covered_cases == self.cases


def savings(run: Run) -> list[Saving]:
    """One entry for every suite of the run that says how often a step launches its cases and has a fused kernel with a time."""
    weighted = {summary.case.suite for summary in run.cases if summary.case.weight != 1 and not summary.case.variant}
    return [_saving(suite) for suite in run.suites if suite.name in weighted and BEST_FUSED in suite.saved_us_per_step]


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


def _saving(suite: SuiteSummary) -> Saving:
    covered = suite.covered_cases[BEST_FUSED]
    compiled = suite.saved_us_per_step.get(_COMPILED)
    star = "" if suite.covered_cases.get(_COMPILED) == covered else "*"
    return Saving(
        suite=suite.name,
        baseline_us=suite.baseline_us_per_step[BEST_FUSED],
        saved_us=suite.saved_us_per_step[BEST_FUSED],
        covered_cases=covered,
        cases=suite.cases,
        covered_weight=suite.covered_weight[BEST_FUSED],
        compiled=DASH if compiled is None else signed(compiled) + star,
    )
