"""The strategy of `fusebench run`: every case through the accuracy gate and the timer, then the suspects again, into one record."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ...schema import (
    SCHEMA_VERSION,
    Case,
    CaseSummary,
    ExitCode,
    KernelInfo,
    Result,
    Run,
    Sample,
    Status,
    boards_of,
)
from ...stats.weighted import suite_summaries
from ...store.journal import Journal
from ...store.run_folder import WARM_UP
from ...verdict.baseline.compare_to_baseline import RunJudgement, Suspect, judge_run
from ...verdict.margins.rule import MarginRule
from ...verdict.margins.support import board_of
from ..case_kernels import AnyKernel, CaseKernels, Kernels, case_kernels, result_for, split_reference, work_of
from ..context import AHEAD, MeasuringContext
from ..dispatched import DispatchChoices
from ..engine import Budget, Strategy, Work
from ..workers.ahead import Checks, check_ahead
from ..workers.protocol import Measured
from .looks import confirming_budget
from .measured_case import CaseMeasurement, Remeasurement
from .options import RunOptions
from .reckoning import Reckoning
from .summarise import untimed_summary
from .suspected import Suspected, until_next_look


class Findings(Protocol):
    """What a measurement of one case has found; it may be read at any time."""

    @property
    def results(self) -> list[Result]:
        """Final results, in the order in which they became final."""

    @property
    def summary(self) -> CaseSummary | None:
        """The case itself; None until its kernels are timed, or known not to be."""

    @property
    def replies(self) -> list[Measured]:
        """The answer of each process; empty if nothing was timed."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the work."""


class CaseWork(Findings, Work, Protocol):
    """The first measurement of a case, here or elsewhere."""


class RunStrategy(Strategy[Case, CaseKernels, CaseWork, Run]):
    """Collects samples, results and case summaries in the order in which they come."""

    engine_keeps_budget = True
    """Whether the engine hands the budget out, case by case."""

    def __init__(
        self,
        context: MeasuringContext,
        collection: Kernels,
        options: RunOptions,
        *,
        rule: MarginRule,
        baseline: Run | None = None,
        confirm: bool = True,
        ahead: bool = False,
        ahead_s: float | None = None,
        reckoning: Reckoning | None = None,
        journal: Journal | None = None,
    ) -> None:
        """
        Args:
            journal: takes every finished case before the next one begins; None keeps them in memory alone.
            baseline: the stored baseline, which is valid; None if there is none.
            confirm: whether suspects are remeasured.
            ahead: whether several processes check the kernels of all cases before the first one is measured.
            ahead_s: seconds after which they begin no further case; None for no limit.
            reckoning: shares a budget out by the cases' expected seconds; evenly where None.
        """
        self.context: MeasuringContext = context
        self.collection, self.options = collection, options
        self._rule, self._baseline, self._confirm = rule, baseline, confirm
        self._ahead, self._ahead_s, self._reckoning = ahead, ahead_s, reckoning
        self._judgement: RunJudgement | None = None
        self._results: list[Result] = []
        self._cases: list[CaseSummary] = []
        self._samples: dict[str, list[Sample]] = {}
        """By case."""
        self._id, self._journal = secrets.token_hex(4), journal
        self._fresh: dict[str, list[Measured]] = {}
        """By suspect, the answers of its fresh processes."""
        self._settled: set[str] = set()
        """Suspects that could not be remeasured."""
        self._units: dict[str, CaseKernels] = {}
        self._checks = Checks()
        self._own_board = ""
        """That measures, in a run that also holds what others measured."""
        self._exit_code = ExitCode.PASS

    @property
    def begun(self) -> bool:
        return bool(self._results)

    @property
    def samples(self) -> list[Sample]:
        return [sample for one in self._samples.values() for sample in one]

    def prepare(self, items: Sequence[Case]) -> None:
        """A kernel file that cannot be loaded is a kernel that failed, where its op is being run.

        Raises:
            UsageError: the run to resume was made on another GPU model or CPU, of other sources, or with other settings.
        """
        if self.context.note_unloaded(self.collection.problems, {case.op for case in items}):
            self._exit_code = ExitCode.KERNEL_FAILED
        if (resumed := self.options.resumed) is not None:
            own = self.context.environment_at_start
            resumed.require_same(own, self.context.plan, self.context.timer)
            boards = boards_of(resumed.run.environment.device_uuid, own.device_uuid)
            if len(boards) > 1:
                self._own_board = own.device_uuid
                self.context.environment_at_start = msgspec.structs.replace(own, device_uuid=",".join(boards))

    def plan(self, items: Sequence[Case]) -> list[CaseKernels]:
        device, triton = self.context.device, self.context.environment_at_start.triton
        choices = DispatchChoices(self.collection, device, triton, self.context.warn)
        units = [case_kernels(self.collection, case, device.kind, self.options.kernel, dispatched=choices.kernel(case)) for case in items]
        for unit in units:
            split_reference(self.collection, unit.op)
        self._units = {unit.case.key: unit for unit in units}
        if self._journal is not None:
            every = [self._info(kernel) for kernel in self.collection.kernels.values()]
            self._journal.begin(msgspec.structs.replace(self.record(complete=False), kernels=every))
        if self._ahead:
            self._check_ahead(units)
        return units

    def _check_ahead(self, units: Sequence[CaseKernels]) -> None:
        context = self.context
        with context.phases.timed(AHEAD):
            self._checks = check_ahead(
                context.pool,
                units,
                seconds=self._ahead_s,
                on_step=lambda done, total: context.reporter.step("compile and check", done, total),
            )
        context.phases.add({}, self._checks.seconds)

    def same_work(self, unit: CaseKernels) -> Hashable | None:
        copied = any(summary.same_as for summary in self._cases if summary.case.key == unit.case.key)
        return None if copied else work_of(unit)

    def seconds_for(self, unit: CaseKernels, rest: int, budget: Budget) -> float | None:
        left = budget.share(rest if self._reckoning is None else 1)
        if left is None or self._reckoning is None:
            return left
        keys = list(self._units)
        return self._reckoning.allowance(unit.case.key, keys[len(keys) - rest + 1 :], left)

    def taken_over(self, unit: CaseKernels) -> bool:
        resumed, found = self.options.resumed, self.finished_before(unit)
        if found is None or resumed is None:
            return False
        summary, results, samples = found
        summary = self._on_board(summary, board_of(summary, resumed.run))
        self.context.timer, self.context.timer_fallback = resumed.run.timer, resumed.run.timer_fallback
        self._cases.append(summary)
        self._samples[summary.case.key] = samples
        self._add(results)
        self._to_journal(summary.case.key)
        return True

    def _on_board(self, summary: CaseSummary, board: str) -> CaseSummary:
        """`summary`, naming its board where the run is of several."""
        return msgspec.structs.replace(summary, board=summary.board or board) if self._own_board else summary

    def finished_before(self, unit: CaseKernels) -> tuple[CaseSummary, list[Result], list[Sample]] | None:
        """The case as the resumed run finished it; None if it did not, or if no run is resumed."""
        resumed = self.options.resumed
        kernels = [str(kernel.id) for kernel in unit.runnable] + [result.kernel for result in unit.declined]
        return resumed.finished(unit.case, kernels) if resumed is not None else None

    def repeat(self, unit: CaseKernels, earlier: CaseKernels) -> None:
        summary, results = self._known(earlier.case.key)
        self._cases.append(_copied(summary, unit.case))
        self._add([renamed(result, unit.case) for result in results])
        self._to_journal(unit.case.key)

    def skip(self, unit: CaseKernels, reason: str) -> None:
        self._cases.append(untimed_summary(unit))
        self._add(unit.declined)
        self._add([result_for(unit.case, unit.shape, kernel, Status.NOT_MEASURED, reason) for kernel in unit.runnable])
        self._to_journal(unit.case.key)

    def work_on(self, unit: CaseKernels, number: int) -> CaseWork:
        # Every case chooses its timer anew: where the default one fails on one case, it may do for the next.
        work = work_of(unit)
        expected_s = self._reckoning.cases.get(unit.case.key) if self._reckoning is not None else None
        return CaseMeasurement(unit, self.context, self._checks.passed.get(work), self._checks.wrong.get(work), expected_s)

    def keep(self, unit: CaseKernels, work: CaseWork, *, finished: bool) -> None:
        """Take over final results, also before an interruption; the reporter has shown them."""
        if work.replies:
            self.context.note_timer(work.replies[0])
        self._keep_samples(unit.case.key, work.replies)
        if work.summary is not None:
            self._cases.append(msgspec.structs.replace(self._on_board(work.summary, self._own_board), seconds=work.seconds))
        self._results += work.results
        assert work.summary is not None or not finished, "a case that is over has a summary"
        if finished:
            self._to_journal(unit.case.key)

    def finish(self, budget: Budget) -> None:
        """Remeasure the suspects in fresh processes, look by look, until each is decided or the budget ends."""
        budget = confirming_budget(budget, self.context.phases.spending().total_s)
        while chosen := self.suspected():
            done = 0
            for place, one in budget.while_it_lasts(chosen):
                key = one.suspect.case
                unit = self._units[key]
                self.context.reporter.note(one.words)
                self.context.reporter.case(place + 1, len(chosen), unit.case, unit.shape)
                work = Remeasurement(
                    unit, self.context, self._known(key)[1], one.suspect.reason, one.kernels, first=one.first, before=one.before
                )
                work.measure(one.processes, one.looks)
                self.keep_remeasured(one, work)
                done = place + 1
            if done < len(chosen):
                self._warn_of_left(budget, [one.suspect.case for one in chosen[done:]])
                return

    def _warn_of_left(self, budget: Budget, keys: Iterable[str]) -> None:
        self.context.warn(
            f"confirmation: {budget} was too short to remeasure these suspects as often as they may be: {', '.join(keys)}; "
            "--resume goes on with them"
        )

    def suspected(self) -> list[Suspected]:
        """The suspects that are to be remeasured until their next look, those of the earliest look first, then the most urgent."""
        open_ones = [one for one in self.suspects() if one.case not in self._settled]
        return until_next_look(open_ones, self._known, self._samples, self._fresh, scatter_known=self._scatter_known)

    @property
    def _scatter_known(self) -> bool:
        return self._rule.knows(self.record(complete=False))

    def judge(self, record: Run) -> RunJudgement:
        """The judgement on the measured cases; made anew only where something was measured since the last one.

        Args:
            record: this run's own.
        """
        if self._judgement is None:
            self._judgement = judge_run(record, self._baseline, self._rule)
        return self._judgement

    def suspects(self) -> Sequence[Suspect]:
        """Cases to remeasure in fresh processes, the most urgent first."""
        if self._baseline is None or not self._confirm:
            return ()
        return judge_run(self.record(complete=False), self._baseline, self._rule.confirming()).suspects

    def keep_remeasured(self, one: Suspected, work: Findings) -> None:
        """Take over the figures of a suspect's fresh processes."""
        key = one.suspect.case
        self._judgement = None
        # Samples only together with the figures that are of them: an interruption keeps neither.
        self._keep_samples(key, work.replies, first=one.first + len(one.before))
        self._replace(key, work.summary, work.results)
        if work.summary is None:
            self._settled.add(key)
        else:
            self._fresh[key] = [*one.before, *work.replies]
        for summary in self._cases:
            if key in (summary.case.key, summary.same_as):
                self._to_journal(summary.case.key)

    def _to_journal(self, key: str) -> None:
        """Have the finished case `key` on disk before anything else is measured."""
        if self._journal is None:
            return
        summary, results = self._known(key)
        record = self._record([summary], results, complete=False)
        state = dict(record.environment.state)
        state[WARM_UP] = {place: found for place, found in state[WARM_UP].items() if place == key or place.startswith(f"{key} in process ")}
        environment = msgspec.structs.replace(record.environment, state=state)
        self._journal.add(msgspec.structs.replace(record, environment=environment), self._samples.get(key, []))

    def record(self, *, complete: bool) -> Run:
        return self._record(self._cases, self._results, complete=complete)

    def _record(self, cases: Sequence[CaseSummary], results: Sequence[Result], *, complete: bool) -> Run:
        context, options = self.context, self.options
        kernels = {result.kernel for result in results}
        resumed = options.resumed
        return Run(
            schema_version=SCHEMA_VERSION,
            id=self._id,
            created=context.created_text,
            command=options.command,
            timer=context.timer,
            timer_fallback=context.timer_fallback,
            plan=context.plan,
            environment=context.environment(),
            selected=options.selected,
            selected_op=options.op,
            selected_cases=options.case,
            selected_kernels=options.kernel,
            shard=options.shard,
            suites=suite_summaries(cases, results),
            cases=list(cases),
            kernels=[self._info(kernel) for key, kernel in self.collection.kernels.items() if key in kernels],
            results=list(results),
            spending=context.phases.spending(),
            resumed_from=[*resumed.run.resumed_from, resumed.run.id] if resumed is not None else [],
            warnings=context.distinct_warnings,
            complete=complete,
            exit_code=self._exit_code,
        )

    def _info(self, kernel: AnyKernel) -> KernelInfo:
        """The kernel's declaration, its file named from the project's root: a record is read on other machines."""
        file, root = Path(kernel.file), self.context.project_root
        shown = file.relative_to(root) if file.is_relative_to(root) else file
        return msgspec.structs.replace(kernel.info, file=shown.as_posix())

    def _known(self, key: str) -> tuple[CaseSummary, list[Result]]:
        """The summary and the results of a case, by its key."""
        summary = next(one for one in self._cases if one.case.key == key)
        return summary, [result for result in self._results if result.case_key == key]

    def _keep_samples(self, key: str, replies: Sequence[Measured], first: int = 0) -> None:
        """Keep the measurements of a case by processes numbered from `first` on."""
        for number, reply in enumerate(replies, start=first):
            self.context.warm_up[f"{key} in process {number + 1}" if number else key] = reply.warm_up
            self._samples.setdefault(key, []).extend(reply.samples)

    def _replace(self, key: str, summary: CaseSummary | None, results: Sequence[Result]) -> None:
        """Replace the results of a case and of its repetitions, and its summary unless that is None."""
        known = self._known(key)[0]
        summary = known if summary is None else msgspec.structs.replace(self._on_board(summary, self._own_board), seconds=known.seconds)
        by_kernel = {result.kernel: result for result in results}
        concerned = {one.case.key for one in self._cases if key in (one.case.key, one.same_as)}
        for place, known in enumerate(self._cases):
            if known.case.key in concerned:
                self._cases[place] = summary if known.case.key == key else _copied(summary, known.case)
        for place, result in enumerate(self._results):
            if result.case_key in concerned:
                self._results[place] = msgspec.structs.replace(by_kernel[result.kernel], case=result.case, suite=result.suite)

    def _add(self, results: Sequence[Result]) -> None:
        self._results += results
        for result in results:
            self.context.reporter.result(result)


def _copied(summary: CaseSummary, case: Case) -> CaseSummary:
    """The summary of `case`, which is the same work."""
    return msgspec.structs.replace(summary, case=case, same_as=summary.case.key)


def renamed(result: Result, case: Case) -> Result:
    """The result under the name and suite of `case`, which is the same work."""
    return msgspec.structs.replace(result, case=case.name, suite=case.suite)
