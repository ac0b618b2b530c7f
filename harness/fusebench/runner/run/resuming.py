"""Resumes a stopped run: its finished cases are taken over if nothing has changed that results depend on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...errors import UsageError
from ...schema import Case, CaseSummary, Environment, Result, Run, Sample, SamplingPlan, Status
from ...verdict.margins.rule import MarginRule
from ..resuming import content_of, require_same, same_timers
from .suspected import left_of


class Resumed:
    """The finished cases of an earlier run."""

    def __init__(self, run: Run, samples: Sequence[Sample]) -> None:
        self.run = run
        self._samples = samples
        self._summaries = {summary.case.key: summary for summary in run.cases}

    def require_unfinished(self, baseline: Run | None, rule: MarginRule) -> None:
        """Refuse a run with nothing left to do: complete, and without a suspect that its budget left.

        Args:
            baseline: that suspects are of; None where none are to be remeasured.

        Raises:
            UsageError: it is.
        """
        if self.run.complete and not left_of(self.run, self._samples, baseline, rule):
            raise UsageError(
                f"--resume: run {self.run.id} is complete, and no suspect of it is left to remeasure; "
                "start a new one by leaving --resume out"
            )

    def require_same(self, environment: Environment, plan: SamplingPlan, timer: str) -> None:
        """Refuse to resume on another machine, with other sources, or with other settings.

        Raises:
            UsageError: naming every difference.
        """
        settings = [("sampling plan", self.run.plan, plan), *same_timers(self.run.timer, timer)]
        require_same(f"run {self.run.id}", self.run.environment, environment, settings)

    def finished(self, case: Case, kernels: Sequence[str]) -> tuple[CaseSummary, list[Result], list[Sample]] | None:
        """The summary, results and samples of `case`; None if it is missing, was not measured, or had other kernels or parameters."""
        summary = self._summaries.get(case.key)
        if summary is None or content_of(summary.case) != content_of(case) or summary.limit_us is None:
            return None
        results = [result for result in self.run.results if result.case_key == case.key]
        if {result.kernel for result in results} != set(kernels) or any(result.status is Status.NOT_MEASURED for result in results):
            return None
        results = [_unjudged(result) for result in results]
        return summary, results, [sample for sample in self._samples if sample.case == case.key]


def _unjudged(result: Result) -> Result:
    return msgspec.structs.replace(result, verdict=None)
