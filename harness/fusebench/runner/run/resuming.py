"""Resumes a stopped run: its finished cases are taken over if nothing has changed that results depend on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from ...schema import Case, CaseSummary, Environment, Result, Run, Sample, SamplingPlan, Status
from ...verdict.baseline.compare_to_baseline import judge_run
from ...verdict.margins.rule import MarginRule
from ..resuming import content_of, require_incomplete, require_same, same_timers
from .suspected import until_next_look


class Resumed:
    """The finished cases of an earlier run."""

    def __init__(self, run: Run, samples: Sequence[Sample]) -> None:
        self.run = run
        self._summaries = {summary.case.key: summary for summary in run.cases}
        self._results: dict[str, list[Result]] = defaultdict(list)
        for result in run.results:
            self._results[result.case_key].append(result)
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self._samples[sample.case].append(sample)

    def require_unfinished(self, baseline: Run | None, rule: MarginRule) -> None:
        """Refuse a run with nothing left to do: complete, and without a suspect that its budget left.

        Args:
            baseline: that suspects are of; None where none are to be remeasured.

        Raises:
            UsageError: it is.
        """
        complete = self.run.complete and not (baseline is not None and self._leaves_suspects(baseline, rule))
        require_incomplete(f"run {self.run.id}", complete=complete, nothing_left="no suspect of it is left to remeasure")

    def _leaves_suspects(self, baseline: Run, rule: MarginRule) -> bool:
        suspects = judge_run(self.run, baseline, rule.confirming()).suspects
        scatter_known = rule.knows(self.run)
        return bool(until_next_look(suspects, self._known, self._samples, {}, scatter_known=scatter_known))

    def _known(self, key: str) -> tuple[CaseSummary, list[Result]]:
        return self._summaries[key], self._results[key]

    def require_same(self, environment: Environment, plan: SamplingPlan, timer: str) -> None:
        """Refuse to resume on another GPU model or CPU, with other sources, or with other settings.

        Raises:
            UsageError: naming every difference.
        """
        settings = [("sampling plan", self.run.plan, plan), *same_timers(self.run.timer, timer)]
        require_same(f"run {self.run.id}", self.run.environment, environment, settings, names_boards=True)

    def finished(self, case: Case, kernels: Sequence[str]) -> tuple[CaseSummary, list[Result], list[Sample]] | None:
        """The summary, results and samples of `case`; None if it is missing, was not measured, or had other kernels or parameters."""
        summary = self._summaries.get(case.key)
        if summary is None or content_of(summary.case) != content_of(case) or summary.limit_us is None:
            return None
        results = self._results[case.key]
        if {result.kernel for result in results} != set(kernels) or any(result.status is Status.NOT_MEASURED for result in results):
            return None
        results = [_unjudged(result) for result in results]
        return summary, results, list(self._samples[case.key])


def _unjudged(result: Result) -> Result:
    return msgspec.structs.replace(result, verdict=None)
