"""The static provider of evidence for verdicts: the compiled kernel of head beside that of base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..schema import Attachment, Case, VerdictKind
from ..suites import Ops
from .attached import EvidenceTarget, Key
from .collecting import OnProgress, collect
from .evidence_cache import EvidenceCache
from .records import KernelEvidence, StaticReport, StaticStatus
from .static_gate import DEFAULT_MARGIN, StaticJudgement, judge
from .targets import Target

COLUMNS = ("launch", "figure", "before", "after", "")
NEITHER = "neither revision declares it as a kernel in Triton or CUDA C++"


class EvidenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request to one revision's kernels."""

    target: Target
    cases: tuple[Case, ...]
    kernels: tuple[str, ...]


class EvidenceReply(msgspec.Struct, frozen=True, kw_only=True):
    """Their answer."""

    report: StaticReport
    name: str
    """`this checkout`, `commit 1a2b3c`."""
    notes: tuple[str, ...] = ()
    """Remarks on their origin."""


EvidenceSource = Callable[[EvidenceRequest], EvidenceReply]
"""The kernels of one revision, asked for evidence.  Raises FusebenchError if there is none."""


def compiled_source(
    roots: Sequence[Path], name: str, *, ops: Ops, jobs: int, cache: EvidenceCache, on_progress: OnProgress
) -> EvidenceSource:
    """The kernels in `roots`, compiled on request."""

    def tell(wanted: EvidenceRequest) -> EvidenceReply:
        report = collect(
            wanted.cases, wanted.target, ops=ops, roots=roots, kernel=wanted.kernels, jobs=jobs, cache=cache, on_progress=on_progress
        )
        return EvidenceReply(report=report, name=name, notes=tuple(f"{name}: not loaded: {problem}" for problem in report.not_loaded))

    return tell


class StaticEvidence:
    """Compares the compiled suspects of `before` and `after`.  The caller handles a FusebenchError of either."""

    kind = "static"
    title = "static evidence"

    def __init__(self, target: Callable[[], Target], before: EvidenceSource, after: EvidenceSource) -> None:
        self._target, self._before, self._after = target, before, after

    def explain(self, suspects: Sequence[EvidenceTarget]) -> dict[Key, Attachment]:
        """An attachment for every suspect in Triton or CUDA C++, without other libraries' kernels.

        Raises:
            FusebenchError: the target, the sources or the compiler are missing.
        """
        wanted = EvidenceRequest(
            target=self._target(),
            cases=tuple({suspect.case.key: suspect.case for suspect in suspects}.values()),
            kernels=tuple(dict.fromkeys(suspect.kernel for suspect in suspects)),
        )
        before, after = self._before(wanted), self._after(wanted)
        keys = [case.key for case in wanted.cases]
        judged = judge(after.report, before.report, margin=DEFAULT_MARGIN, cases=keys, reference=before.name)
        judgements = {(one.case, one.kernel): one for one in judged}
        earlier = {one.key: one for one in before.report.results}
        later = {one.key: one for one in after.report.results}
        title = f"{self.title} for {wanted.target.name} ({wanted.target.gpu}): {before.name} → {after.name}"
        notes = (*before.notes, *after.notes)
        found = {}
        for suspect in suspects:
            key = suspect.key
            judgement = judgements.get(key)
            rows = _rows(judgement) if judgement is not None else ()
            said = _said(judgement, earlier.get(key), later.get(key), before.name) if judgement is not None else (NEITHER,)
            found[key] = Attachment(kind=self.kind, title=title, columns=COLUMNS, rows=rows, notes=(*said, *notes))
        return found


_MARKS = {VerdictKind.REGRESSION: "worse", VerdictKind.IMPROVEMENT: "better"}


def _rows(judgement: StaticJudgement) -> tuple[tuple[str, ...], ...]:
    return tuple((str(change.launch + 1), change.what, change.old, change.new, _MARKS.get(change.kind, "")) for change in judgement.changes)


def _said(judgement: StaticJudgement, before: KernelEvidence | None, after: KernelEvidence | None, name: str) -> tuple[str, ...]:
    """Facts that the rows do not show."""
    if after is None or after.status is not StaticStatus.COMPILED:
        return (judgement.reason,)
    if before is None:
        return (f"{name} does not have this kernel on this case",)
    if before.status is not StaticStatus.COMPILED:
        return (f"{name}: {before.status.replace('_', ' ')}: {before.reason}",)
    if judgement.kind is VerdictKind.INCOMPARABLE:
        return (judgement.reason,)
    codes = [[launch.code.sha256 for launch in one.launches] for one in (before, after)]
    if codes[0] == codes[1]:
        return (f"compiled to the same code in both revisions and launched {'differently' if judgement.changes else 'alike'}",)
    return () if judgement.changes else ("other machine code, the same in every figure",)
