"""Chooses the regressions that get evidence, and attaches it to their records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ...evidence.attached import EvidenceTarget, Key, Provider, attachments_of
from ...schema import Attachment, KernelInfo, Language, Result, Role, Run, Verdict, VerdictKind
from ...store.comparison_record import Comparison
from ...verdict.baseline.judgement import Judgement

COMPILED = frozenset({Language.TRITON, Language.CUDA})
"""Languages whose machine code is made here; torch's kernels are another library's."""


def compiled_kernels(kernels: Sequence[KernelInfo]) -> frozenset[str]:
    """Ids of the kernels whose machine code is made here, so that evidence can be collected."""
    return frozenset(kernel.id for kernel in kernels if kernel.language in COMPILED)


def explained_comparison(record: Comparison, compiled: Collection[str], providers: Sequence[Provider]) -> Comparison:
    """`record` with evidence about its regressions; `compiled`: ids of kernels whose machine code is made here."""
    cases = {one.case.key: one.case for one in record.cases}
    suspects = [
        EvidenceTarget(one.kernel, cases[one.case_key], _slower(one.verdict))
        for one in record.kernels
        if one.verdict.kind is VerdictKind.REGRESSION and one.kernel in compiled and one.role is not Role.PEER
    ]
    found = attachments_of(suspects, providers)
    kernels = [
        msgspec.structs.replace(one, attachments=attached) if (attached := found.get((one.case_key, one.kernel))) else one
        for one in record.kernels
    ]
    return msgspec.structs.replace(record, kernels=kernels)


def any_regressed(run: Run) -> bool:
    """Whether a judged run holds a gating regression."""
    return any(_regressed(result) for result in run.results)


def explained_run(run: Run, providers: Sequence[Provider]) -> Run:
    """`run`, judged, with evidence about its regressions."""
    regressions = [
        (result.case_key, result.kernel, _slower(result.verdict))
        for result in run.results
        if result.verdict is not None and _regressed(result)
    ]
    found = _explained(run, regressions, providers)
    results = [
        msgspec.structs.replace(result, attachments=attached) if (attached := found.get((result.case_key, result.kernel))) else result
        for result in run.results
    ]
    return msgspec.structs.replace(run, results=results)


def explained_judgements(judgements: Sequence[Judgement], run: Run, providers: Sequence[Provider]) -> dict[Key, tuple[Attachment, ...]]:
    """Evidence about the regressions among `judgements` on `run`."""
    regressions = [(f"{one.suite}:{one.case}", one.kernel, _slower(one.verdict)) for one in judgements if regressed(one)]
    return _explained(run, regressions, providers)


def regressed(judgement: Judgement) -> bool:
    """Whether it is a gating regression."""
    return judgement.verdict.gating and judgement.verdict.kind is VerdictKind.REGRESSION


def _regressed(result: Result) -> bool:
    return result.gating and result.verdict is not None and result.verdict.kind is VerdictKind.REGRESSION


def _slower(verdict: Verdict) -> bool:
    """Whether a regression may be one of speed: a loss of accuracy is one whatever the times say."""
    return verdict.change is None or verdict.change.value > 1 + (verdict.margin or 0.0)


def _explained(run: Run, regressions: Sequence[tuple[str, str, bool]], providers: Sequence[Provider]) -> dict[Key, tuple[Attachment, ...]]:
    """`regressions`: a case's key, a kernel's id, and whether it is slower."""
    cases = {summary.case.key: summary.case for summary in run.cases}
    compiled = compiled_kernels(run.kernels)
    suspects = [EvidenceTarget(kernel, cases[case], slower) for case, kernel, slower in regressions if kernel in compiled and case in cases]
    return attachments_of(suspects, providers)
