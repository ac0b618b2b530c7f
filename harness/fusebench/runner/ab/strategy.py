"""The strategy of `fusebench ab`: the kernels of head against those of base, in the same rounds of one process, into one record.

Head is this checkout with its uncommitted changes; base is the commit or folder that it is compared with.  Each case is checked, timed
and confirmed by itself.  Verdicts come at the end, when the noise of all cases is known (`verdict.revisions`).
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence

import msgspec

from ...schema import AAPair, Case, ExitCode, Sample, Status
from ...stats.fdr import first_level
from ...stats.sequential import Plan
from ...store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison
from ...verdict.conclusion import PROCESSES
from ...verdict.margins.rule import CPU_FLOOR_US, CPU_MARGIN
from ...verdict.revisions import ab_exit_code, judge_revisions
from ..case_kernels import CaseKernels, result_for, split_reference, work_of
from ..context import MeasuringContext
from ..engine import Strategy
from .case_comparison import CaseComparison
from .resuming import ResumedComparison
from .revisions import NOT_COMPARED, KernelPair, Revisions, unchecked

SAMPLED_AA_PAIRS = 2
"""Kernels of identical code that are timed in every case (fewer if it has fewer): they show the run's own noise. The choice changes from
case to case, so that a suite of five cases times up to ten."""


def default_looks(device_kind: str) -> Plan:
    """The default looks and margin of the sequential test, on `cpu` or `cuda`.

    A CPU shares its cores and caches with other programs, so its margin is a tenth of the time: large mistakes show, noise does not.
    """
    return Plan() if device_kind == "cuda" else Plan(looks=(12, 18, 28), margin=CPU_MARGIN, floor_us=CPU_FLOOR_US)


class ComparisonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a comparison."""

    looks: Plan
    kernel: str | None = None
    """Glob of kernels."""
    time_identical: bool = False
    """Whether every kernel of identical code is timed, and not a sample."""
    command: str = ""
    sources: str = ""
    """Digest of both revisions' kernels folders, for the record."""
    resumed: ResumedComparison | None = None
    """A stopped comparison to go on with."""


class PairedCase(msgspec.Struct, frozen=True):
    """One case with the kernels of both revisions."""

    unit: CaseKernels
    pairs: list[KernelPair]

    @property
    def case(self) -> Case:
        return self.unit.case

    @property
    def shape(self) -> str:
        return self.unit.shape


class ComparisonStrategy(Strategy[Case, PairedCase, CaseComparison, Comparison]):
    """Collects the findings of every case, in order."""

    def __init__(self, context: MeasuringContext, revisions: Revisions, base: BaseRevision, options: ComparisonOptions) -> None:
        self.context: MeasuringContext = context
        self.revisions, self.base, self.options = revisions, base, options
        self._looks = options.looks
        self._samples: list[Sample] = []
        self._cases: list[ComparedCase] = []
        self._kernels: list[ComparedKernel] = []
        self._aa_pairs: list[AAPair] = []
        self._exit_code = ExitCode.PASS
        self._id = secrets.token_hex(4)

    @property
    def begun(self) -> bool:
        return bool(self._kernels)

    @property
    def samples(self) -> list[Sample]:
        return self._samples

    def prepare(self, items: Sequence[Case]) -> None:
        """A kernel file of head that does not load has failed; one of base is one kernel less to compare.

        Raises:
            UsageError: the comparison to go on with was made on another machine, of other sources, or with other settings.
        """
        ops = {case.op for case in items}
        for problem in (one for one in self.revisions.head.problems if one.op in ops):
            self.context.warn(f"not loaded: {problem}")
            self._exit_code = ExitCode.KERNEL_FAILED
        for problem in (one for one in self.revisions.base.problems if one.op in ops):
            self.context.warn(f"not loaded in the base revision: {problem}")
        if (resumed := self.options.resumed) is not None:
            context = self.context
            resumed.require_same(context.environment_at_start, context.plan, context.timer, self.base, self.options.sources)

    def plan(self, items: Sequence[Case]) -> list[PairedCase]:
        """The cases, and the sampling plan: its first stage as strict as the number of comparisons asks for (see `stats.fdr`)."""
        units = [PairedCase(*self.revisions.kernel_pairs(case, self.context.device.kind, self.options.kernel)) for case in items]
        for unit in units:
            split_reference(self.revisions.head, unit.unit.op)
        count = sum(not pair.reason for unit in units for pair in unit.pairs)
        level = first_level(max(1, count), PROCESSES, most=self.options.looks.alarm_level)
        self._looks = msgspec.structs.replace(self.options.looks, alarm_level=level)
        if self.options.resumed is not None:
            self.options.resumed.require_same_looks(self.context.environment_at_start, self._looks)
        return units

    def taken_over(self, unit: PairedCase) -> bool:
        resumed = self.options.resumed
        found = resumed.finished(unit.unit, unit.pairs) if resumed is not None else None
        if found is None or resumed is None:
            return False
        self.context.timer, self.context.timer_fallback = resumed.record.timer, resumed.record.timer_fallback
        if found.warm_up is not None:
            self.context.warm_up[unit.case.key] = found.warm_up
        self.context.warnings += found.warnings
        self._cases.append(found.figures)
        self._samples += found.samples
        self._aa_pairs += found.aa_pairs
        self._finish(unit, found.kernels)
        return True

    def same_work(self, unit: PairedCase) -> Hashable | None:
        return work_of(unit.unit)

    def repeat(self, unit: PairedCase, earlier: PairedCase) -> None:
        self._cases.append(ComparedCase(case=unit.case, shape=unit.shape, same_as=earlier.case.key))

    def skip(self, unit: PairedCase, reason: str) -> None:
        self._cases.append(ComparedCase(case=unit.case, shape=unit.shape))
        self._finish(unit, [unchecked(unit.unit, pair, f"{NOT_COMPARED}{reason}" if pair.compared else "") for pair in unit.pairs])

    def work_on(self, unit: PairedCase, number: int) -> CaseComparison:
        sampled = self._sampled(unit.pairs, number)
        return CaseComparison(
            unit.unit, unit.pairs, sampled, looks=self._looks, time_identical=self.options.time_identical, context=self.context
        )

    def keep(self, unit: PairedCase, work: CaseComparison, *, finished: bool) -> None:
        """Take over the measurements of a case, also after an interruption; its kernels follow when the case is finished."""
        found = work.found
        if found.measured is not None:
            self.context.note_timer(found.measured)
            self.context.warm_up[unit.case.key] = found.measured.warm_up
        self._cases += [found.figures] if found.figures is not None else []
        self._samples += found.samples
        self._aa_pairs += found.aa_pairs
        if finished:
            self._finish(unit, list(found.kernels.values()))

    def record(self, *, complete: bool, judge: bool = True) -> Comparison:
        """The comparison with verdicts on its finished cases; without `judge` its verdicts are pending."""
        context, resumed = self.context, self.options.resumed
        kernels = judge_revisions(self._kernels, self._aa_pairs) if judge else list(self._kernels)
        for case in self._cases:
            if case.same_as:
                same = [one for one in kernels if one.case_key == case.same_as]
                kernels += [msgspec.structs.replace(one, case=case.case.name, suite=case.case.suite) for one in same]
        return Comparison(
            id=self._id,
            created=context.created_text,
            command=self.options.command,
            timer=context.timer,
            timer_fallback=context.timer_fallback,
            plan=context.plan,
            looks=self._looks,
            environment=context.environment(),
            base=self.base,
            sources=self.options.sources,
            resumed_from=[*resumed.record.resumed_from, resumed.record.id] if resumed is not None else [],
            cases=list(self._cases),
            kernels=kernels,
            aa_pairs=list(self._aa_pairs),
            spending=context.phases.spending(),
            warnings=context.distinct_warnings,
            complete=complete,
            exit_code=ab_exit_code(kernels, self._exit_code),
        )

    def _finish(self, unit: PairedCase, found: Sequence[ComparedKernel]) -> None:
        self._kernels += found
        for one in found:
            status = Status.MEASURED if one.finding is not None else one.new_status or Status.NOT_MEASURED
            kernel = self.revisions.head.kernels.get(one.kernel) or self.revisions.base.kernels[one.kernel]
            same = "identical machine code" if one.changed_files else "identical source files"
            seen = one.finding.reason if one.finding is not None else one.reason or same
            self.context.reporter.result(result_for(unit.case, unit.shape, kernel, status, seen))

    def _sampled(self, pairs: Sequence[KernelPair], number: int) -> set[str]:
        """Kernels of identical sources that are timed in case `number`."""
        names = [pair.kernel for pair in pairs if pair.same_source and not pair.reason]
        if self.options.time_identical:
            return set(names)
        return {names[(SAMPLED_AA_PAIRS * number + place) % len(names)] for place in range(min(SAMPLED_AA_PAIRS, len(names)))}
