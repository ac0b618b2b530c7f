"""What a run has found so far: it may be taken at any time, also after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...schema import CaseSummary, Result, Sample
from ..repeats import Outcome
from ..workers.protocol import Measured
from .measured_case import MeasuredCase


class Collected:
    """Samples, results and case summaries, in the order in which they came, and what was remarkable."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.results: list[Result] = []
        self.cases: list[CaseSummary] = []
        self.warnings: list[str] = []
        self.warm_up: dict[str, Any] = {}

    def results_of(self, key: str) -> list[Result]:
        """Those of one case, by its key."""
        return [result for result in self.results if result.case_key == key]

    def keep(self, key: str, found: MeasuredCase) -> None:
        """Take over what was found on a case."""
        self.keep_measured(key, found.measured)
        self.warnings += found.warnings
        self.cases += [found.summary] if found.summary is not None else []
        self.results += found.results

    def keep_measured(self, key: str, replies: Sequence[Measured], first: int = 0) -> None:
        """Take over what processes, numbered from `first` on, measured of a case."""
        for number, reply in enumerate(replies, start=first):
            self.warm_up[f"{key} in process {number + 1}" if number else key] = reply.warm_up
            self.samples += reply.samples

    def replace(self, key: str, summary: CaseSummary | None, results: list[Result]) -> None:
        """Put these in the place of what is known of a case, and of those that take its results; without a summary, the old one stays."""
        outcome = Outcome(summary or next(one for one in self.cases if one.case.key == key), tuple(results))
        by_kernel = {result.kernel: result for result in results}
        concerned = {one.case.key for one in self.cases if key in (one.case.key, one.same_as)}
        for place, known in enumerate(self.cases):
            if known.case.key in concerned:
                self.cases[place] = outcome.summary if known.case.key == key else outcome.under(known.case).summary
        for place, result in enumerate(self.results):
            if result.case_key in concerned:
                self.results[place] = msgspec.structs.replace(by_kernel[result.kernel], case=result.case, suite=result.suite)
