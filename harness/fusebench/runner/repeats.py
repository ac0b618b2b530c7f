"""Cases of one run that are the same work under several names: an operator's suite and a model's often hold one shape.

Such a case is measured once.  Every other case gets copies of its results, and its summary names the case that was measured.
"""

from __future__ import annotations

import msgspec

from ..schema import Case, CaseSummary, Result
from .case_kernels import CaseKernels


class Outcome(msgspec.Struct, frozen=True):
    """What a run found on one case."""

    summary: CaseSummary
    results: tuple[Result, ...]

    def under(self, case: Case) -> Outcome:
        """The same findings under the name, weight and suite of `case`."""
        return Outcome(
            msgspec.structs.replace(self.summary, case=case, same_as=self.summary.case.key),
            tuple(msgspec.structs.replace(result, case=case.name, suite=case.suite) for result in self.results),
        )


class Repeats:
    """Outcomes by what was run: the op and its parameters."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, bytes], Outcome] = {}

    def outcome_of(self, entry: CaseKernels) -> Outcome | None:
        """What was found on an earlier case of the same op and parameters, under this case's name; None on the first."""
        known = self._outcomes.get(work_of(entry))
        return known.under(entry.case) if known is not None else None

    def keep(self, entry: CaseKernels, outcome: Outcome) -> None:
        """Remember what was found on a case."""
        self._outcomes.setdefault(work_of(entry), outcome)


def work_of(entry: CaseKernels) -> tuple[str, bytes]:
    """What is run on a case: cases that agree in it are the same work."""
    # The parsed parameters and not the case's own: a default that one suite writes out is no difference.
    return entry.op.name, msgspec.json.encode(entry.params, order="deterministic")


def remark_on_repeat(case: Case, known: str) -> str:
    """That `case` is not measured, since the case of the key `known` was."""
    return f"case {case.key} is the same work as {known}, whose results it takes"
