"""Resumes a stopped run: its finished cases are taken over if nothing has changed that results depend on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from ...errors import UsageError
from ...schema import Case, CaseSummary, Environment, Result, Run, Sample, SamplingPlan, Status

FINGERPRINT = (
    "device_name", "device_uuid", "driver", "cuda", "python", "torch", "triton", "ptxas", "ptxas_blackwell", "cpu", "cpu_process",
    "fusebench", "git_commit", "git_dirty",
)  # fmt: skip
"""Fields of the environment that must agree: the resumed record must be true of each of its cases."""


def require_incomplete(run: Run) -> None:
    """Raise UsageError if `run` was not stopped before its end."""
    if run.complete:
        raise UsageError(f"--resume: run {run.id} is complete; start a new one by leaving --resume out")


class Resumed:
    """The finished cases of an earlier run.

    Raises:
        UsageError: the run is complete.
    """

    def __init__(self, run: Run, samples: Sequence[Sample]) -> None:
        require_incomplete(run)
        self.run = run
        self._samples = samples
        self._summaries = {summary.case.key: summary for summary in run.cases}

    def require_same(self, environment: Environment, plan: SamplingPlan, timer: str) -> None:
        """Refuse to resume on another machine, with other sources, or with other settings.

        Raises:
            UsageError: naming every difference.
        """
        pairs = [(name, getattr(self.run.environment, name), getattr(environment, name)) for name in FINGERPRINT]
        pairs += [("sampling plan", self.run.plan, plan)]
        if timer != "auto" and self.run.timer != "auto":
            pairs += [("timer", self.run.timer, timer)]
        differences = [f"{name} {old!s} -> {new!s}" for name, old, new in pairs if old != new]
        if not environment.git_commit:
            differences.append("an unknown commit (set FUSEBENCH_COMMIT where sources travel without history)")
        if environment.git_dirty:
            differences.append("uncommitted changes, which may differ")
        if differences:
            raise UsageError(
                f"--resume: run {self.run.id} cannot be gone on with, because results would not be of one kind: {'; '.join(differences)}; "
                "start a new run by leaving --resume out"
            )

    def finished(self, case: Case, kernels: Sequence[str]) -> tuple[CaseSummary, list[Result], list[Sample]] | None:
        """The summary, results and samples of `case`; None if it is missing, was not measured, or had other kernels or parameters."""
        summary = self._summaries.get(case.key)
        if summary is None or _content(summary.case) != _content(case) or summary.limit_us is None:
            return None
        results = [result for result in self.run.results if result.case_key == case.key]
        if {result.kernel for result in results} != set(kernels) or any(result.status is Status.NOT_MEASURED for result in results):
            return None
        results = [_unjudged(result) for result in results]
        return summary, results, [sample for sample in self._samples if sample.case == case.key]


def _content(case: Case) -> tuple[str, str, float, str]:
    return case.op, json.dumps(case.params, sort_keys=True), case.weight, case.variant


def _unjudged(result: Result) -> Result:
    return msgspec.structs.replace(result, verdict=None)
