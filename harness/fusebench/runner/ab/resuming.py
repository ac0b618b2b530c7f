"""Resumes a stopped comparison: its finished cases are taken over if nothing has changed that results depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...schema import AAPair, Environment, Sample, SamplingPlan, Verdict, VerdictKind
from ...stats.sequential import Plan
from ...store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison
from ...verdict.revisions import PENDING
from ..case_kernels import CaseKernels
from ..resuming import content_of, require_incomplete, require_same, same_timers
from .revisions import NOT_COMPARED, KernelPair, unchecked


class FinishedCase(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a stopped comparison that is of one case."""

    figures: ComparedCase
    kernels: list[ComparedKernel]
    """Without verdicts, which depend on all cases."""
    aa_pairs: list[AAPair]
    samples: list[Sample]
    warm_up: object
    warnings: list[str]


class ResumedComparison:
    """The finished cases of an earlier comparison.

    Raises:
        UsageError: the comparison is complete.
    """

    def __init__(self, record: Comparison, samples: Sequence[Sample], folder: Path) -> None:
        require_incomplete(f"comparison {record.id}", complete=record.complete)
        self.record, self.folder = record, folder
        self._samples = samples

    def require_same(self, environment: Environment, plan: SamplingPlan, timer: str, base: BaseRevision, sources: str) -> None:
        """Refuse to go on on another machine, with other kernels or another base, or with other settings.

        Raises:
            UsageError: naming every difference.
        """
        record = self.record
        settings = [("base", record.base.commit or record.base.asked, base.commit or base.asked), ("sampling plan", record.plan, plan)]
        settings += same_timers(record.timer, timer)
        require_same(f"comparison {record.id}", record.environment, environment, settings, sources=(record.sources, sources))

    def require_same_looks(self, environment: Environment, looks: Plan) -> None:
        """Refuse other looks: their first stage is as strict as the number of selected comparisons asks for.

        Raises:
            UsageError: margin or selection differ.
        """
        settings: list[tuple[str, object, object]] = [("margin, or number of selected comparisons", self.record.looks, looks)]
        known = self.record.environment
        require_same(f"comparison {self.record.id}", known, environment, settings, sources=(self.record.sources, self.record.sources))

    def finished(self, unit: CaseKernels, pairs: Sequence[KernelPair]) -> FinishedCase | None:
        """The findings on a case; None if it is missing, was not finished, takes another's results, or had other kernels or parameters."""
        record, case = self.record, unit.case
        figures = next((one for one in record.cases if one.case.key == case.key), None)
        if figures is None or figures.same_as or content_of(figures.case) != content_of(case):
            return None
        kernels = {one.kernel: one for one in record.kernels if one.case_key == case.key}
        if kernels.keys() != {pair.kernel for pair in pairs} or any(one.reason.startswith(NOT_COMPARED) for one in kernels.values()):
            return None
        return FinishedCase(
            figures=figures,
            kernels=[_unjudged(kernels[pair.kernel], unchecked(unit, pair)) for pair in pairs],
            aa_pairs=[pair for pair in record.aa_pairs if pair.case == case.key],
            samples=[sample for sample in self._samples if sample.case == case.key],
            warm_up=(record.environment.state.get("warm_up") or {}).get(case.key),
            warnings=[text for text in record.warnings if text.startswith(f"case {case.key}")],
        )


def _unjudged(found: ComparedKernel, fresh: ComparedKernel) -> ComparedKernel:
    """`found` with the verdict that it had before it was judged; `fresh` is the same kernel before it was run."""
    before: Verdict = fresh.verdict
    if found.finding is None and found.verdict.kind is VerdictKind.UNDECIDED and found.verdict.reason == found.reason:
        before = found.verdict  # its samples were refused
    return msgspec.structs.replace(found, verdict=before if found.verdict != PENDING else PENDING, adjusted_p=None)
