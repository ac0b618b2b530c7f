"""The suspects of a run that still have a look before them: what is to be remeasured next, of a run in progress or of its record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ...schema import CaseSummary, Result, Sample
from ...verdict.baseline.compare_to_baseline import Suspect
from ..workers.protocol import Measured
from .looks import first_processes, fresh_looks, remeasured, replies_of


class Suspected(msgspec.Struct, frozen=True, kw_only=True):
    """A suspect to remeasure until a look."""

    suspect: Suspect
    kernels: tuple[str, ...]
    """The same at every look."""
    first: int
    """Processes that measured the case at first."""
    before: tuple[Measured, ...]
    """Answers of the fresh processes so far."""
    processes: int
    """Fresh processes after which to look."""
    looks: int
    """At which the case may pass, the first measurement's included."""

    @property
    def words(self) -> str:
        """For a note; the record says it by `CaseSummary.suspicion` and `Measurement.looks`."""
        key, fresh = self.suspect.case, self.processes - len(self.before)
        if self.before:
            return f"case {key}: still open after {len(self.before)} fresh processes, so {fresh} more remeasure it: {self.suspect.reason}"
        return f"case {key}: suspect after its first measurement, so remeasured in {fresh} fresh processes: {self.suspect.reason}"


def until_next_look(
    suspects: Iterable[Suspect],
    known: Callable[[str], tuple[CaseSummary, list[Result]]],
    samples: Mapping[str, Sequence[Sample]],
    fresh: Mapping[str, Sequence[Measured]],
    *,
    scatter_known: bool,
) -> list[Suspected]:
    """Those of `suspects` that may be remeasured until another look, those of the earliest look first, then in their order.

    Args:
        known: the summary and the results of a case, by its key.
        samples: of all processes, by case.
        fresh: the answers of fresh processes, by case; where they are missing, the samples tell them.
        scatter_known: whether the scatter between runs is (`fresh_looks`).
    """
    found = []
    for suspect in suspects:
        key = suspect.case
        summary, results = known(key)
        first = first_processes(results, samples.get(key, ()))
        before = fresh.get(key) or replies_of(summary, samples.get(key, ()), first)
        kernels = remeasured(results) if before else suspect.kernels
        looks = fresh_looks(first, scatter_known=scatter_known)
        wanted = next((look for look in looks if look > len(before)), None)
        if wanted is None or (suspect.kernels and not {*kernels} & {*suspect.kernels}):
            continue
        found.append(Suspected(suspect=suspect, kernels=kernels, first=first, before=tuple(before), processes=wanted, looks=len(looks) + 1))
    return sorted(found, key=lambda one: one.processes)
