"""A comparison from two folders of kernels to its record: what is called slower, what is confirmed, what is not compared and why."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device import Device
from fusebench.errors import DeviceUnfitError
from fusebench.registry import load_collection
from fusebench.runner.checking import Workers
from fusebench.runner.comparing import ComparingOptions, ComparingSession, default_looks
from fusebench.runner.messages import BASE, Checked, CheckTask, Failure, Measured, MeasureTask
from fusebench.runner.process import WorkerProcess
from fusebench.runner.two_sides import Sides
from fusebench.schema import Accuracy, CacheState, Case, ExitCode, Sample, SamplingPlan, Status, VerdictKind
from fusebench.stats.confirmation import PROCESSES
from fusebench.stats.sequential import Plan
from fusebench.store.comparison_record import ComparedKernel, Comparison, OtherSide, Standing
from fusebench.timing.coldness import Coldness
from fusebench.timing.lengths import Lengths
from fusebench.timing.pairs import Judge

PLAN = SamplingPlan(replicates=3, rounds=2, cache=CacheState.WARM, trim=0.0)
TIME_NS = 20_000
SCATTER = 0.002
A, B, SPLIT = "scale/a@1", "scale/b@1", "scale/split@1"


class FakeWorker:
    """Answers measurements with scattered times: every arm takes 20 us times `factors[arm]`, in fresh processes `fresh_factors[arm]`."""

    def __init__(self) -> None:
        self.rng = random.Random(7)
        self.factors: dict[str, float] = {}
        self.fresh_factors: Callable[[int, str], float] = lambda process, arm: self.factors.get(arm, 1.0)
        self.same_code: dict[str, bool | None] = {}
        self.rms: dict[str, float] = {}
        self.warm: Callable[[MeasureTask], bool] = lambda task: False
        """Whether a measurement's times are faster than the memory that it saw."""
        self.checks: list[CheckTask] = []
        self.first: list[MeasureTask] = []
        self.fresh: list[MeasureTask] = []
        self.before_measuring: Callable[[MeasureTask], Failure | None] = lambda task: None
        self.fresh_fails = False
        self.failing: set[str] = set()

    def ask(self, task: Any, on_progress: Any) -> Any:
        if isinstance(task, CheckTask):
            self.checks.append(task)
            return self._checked(task)
        self.first.append(task)
        if failure := self.before_measuring(task):
            return failure
        return self._measured(task, lambda arm: self.factors.get(arm, 1.0))

    def ask_fresh(self, task: MeasureTask, process: int) -> Measured | Failure:
        self.fresh.append(task)
        if self.fresh_fails:
            return Failure(status=Status.CRASHED, reason="planted")
        return self._measured(task, lambda arm: self.fresh_factors(process, arm))

    def _checked(self, task: CheckTask) -> Checked:
        rms = self.rms.get(task.kernel, 1e-3)
        return Checked(
            accuracy=Accuracy(
                passed=task.kernel not in self.failing, contract="close(1.5x split)", rms_error=rms, max_error=rms, mean_error=0.0,
                split_rms_error=1e-3, split_max_error=1e-3, equal_to_split=0.0, within_loose_tolerance=True, draws=1, elements=10**9,
                seed=task.seed or 0, reason="off by half",
            )
        )  # fmt: skip

    def _measured(self, task: MeasureTask, factor: Callable[[str], float]) -> Measured:
        known = {name: self.same_code.get(name) for name in (pair.name for pair in task.pairs)}
        judge = Judge(task.pairs, task.looks, task.plan.trim) if task.looks else None
        if judge and task.skip_identical:
            judge.drop(name for name, same in known.items() if same and name not in task.sampled)
        samples: list[Sample] = []
        arms = ["copy", "stream", "control", *task.kernels, *(arm.name for arm in task.extra_arms)]
        lengths = Lengths(task.pairs, task.lengths) if task.lengths else None
        ending = judge or lengths
        for number in range(ending.replicates if ending else task.plan.replicates):
            if judge and not judge.open:
                break
            idle = lengths.idle_arms() if lengths else set()
            taken = [
                sample
                for arm in arms
                if arm not in idle
                for sample in self._samples(task, number, arm, factor(task.baseline if arm == "control" else arm))
            ]
            if lengths:
                lengths.add(taken)
            samples += taken
            if judge:
                judge.add(taken)
        return Measured(
            samples=samples, host_us={}, extra_memory_bytes={}, timer="scripted", timer_fallback="", warm_up={}, seconds=1.0,
            cut_short=False, retried_replicates=0, compared=judge.compared() if judge else {}, same_code=known,
            minimum_bytes=dict.fromkeys(arms, 20_000), coldness=Coldness(
                touched_us=1.0, emptied_us=2.0, memory_gb_per_s=0.5 if self.warm(task) else 2.0,
            ),
        )  # fmt: skip

    def _samples(self, task: MeasureTask, number: int, arm: str, factor: float) -> list[Sample]:
        span = round(TIME_NS * factor * math.exp(self.rng.gauss(0.0, SCATTER)))
        return [
            Sample(case=task.case.key, arm=arm, replicate=number, round=turn, position=0, span_ns=span, busy_ns=span, kernels=1)
            for turn in range(task.plan.rounds)
        ]

    def stop(self) -> None: ...

    def interrupt(self) -> None: ...


class FakeWorkers(Workers):
    def __init__(self, device: Device, worker: FakeWorker) -> None:
        super().__init__(device, [])
        self.native = self.interpreter = worker  # type: ignore[assignment]
        self.processes = 0

    @contextmanager
    def fresh(self, count: int) -> Iterator[list[Any]]:
        worker = self.native
        self.processes += count

        class Fresh:
            def __init__(self, number: int) -> None:
                self.number = number

            def ask(self, task: MeasureTask, on_progress: Any) -> Any:
                return worker.ask_fresh(task, self.number)  # type: ignore[attr-defined]

            def stop(self) -> None: ...

        yield [Fresh(number + 1) for number in range(count)]


class Bench:
    """Two folders of kernels, this side's kernels a and b changed unless a test says otherwise."""

    def __init__(self, folder: Path, toy: Path, source: Callable[..., str], device: Device, reporter: Any) -> None:
        self.folder, self.source, self.device, self.reporter = folder, source, device, reporter
        for side in ("new", "old"):
            shutil.copytree(toy, folder / side, ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("a", "b"):
                self.write(side, name, "x.mul_(factor)")
        self.worker = FakeWorker()
        self.options: dict[str, Any] = {"kernel": "[ab]"}
        self.looks = Plan()

    def write(self, side: str, name: str, body: str) -> None:
        (self.folder / side / "scale" / f"{name}.py").write_text(self.source(name, body))

    def change(self, *names: str) -> None:
        for name in names:
            self.write("new", name, "x.mul_(factor)  # changed")

    def session(self) -> ComparingSession:
        sides = Sides(*(load_collection([self.folder / side], entry_points=False) for side in ("new", "old")))
        options = ComparingOptions(plan=PLAN, looks=self.looks, project_root=self.folder, **self.options)
        return ComparingSession(sides, OtherSide(asked="main"), self.device, options, self.reporter)

    def run(self, *cases: Case) -> Comparison:
        session = self.session()
        self.workers = FakeWorkers(self.device, self.worker)
        session.run(cases, self.workers)
        self.kept = session.samples
        return session.record()


@pytest.fixture
def bench(tmp_path: Path, source: Callable[..., str], cpu: Device, reporter: Any) -> Bench:
    return Bench(tmp_path, Path(__file__).parents[1] / "toy_project" / "kernels", source, cpu, reporter)


def only(comparison: Comparison, kernel: str = A) -> ComparedKernel:
    (found,) = [one for one in comparison.kernels if one.kernel == kernel]
    return found


def test_a_kernel_that_is_one_and_a_half_percent_slower_is_a_regression_confirmed_in_fresh_processes(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    bench.worker.factors = {A: 1.015}
    comparison = bench.run(case)
    found = only(comparison)
    assert found.verdict.kind is VerdictKind.REGRESSION
    assert found.verdict.change is not None
    assert found.verdict.change.value == pytest.approx(1.015, abs=0.003)
    assert "confirmed by 5 of 5 fresh processes" in found.verdict.reason
    assert found.changed_files == ("scale/a.py",)
    assert only(comparison, B).verdict.kind is VerdictKind.PASS
    assert comparison.exit_code == ExitCode.REGRESSION
    assert bench.workers.processes == PROCESSES
    assert {task.kernels for task in bench.worker.fresh} == {(A,)}, "what looks unchanged is not measured again"
    assert len({task.seed for task in bench.worker.fresh}) == PROCESSES


def test_ten_comparisons_of_equal_kernels_whose_files_differ_raise_no_alarm(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    codes = [bench.run(case).exit_code for _ in range(10)]
    assert codes == [ExitCode.PASS] * 10


def test_a_faster_kernel_is_an_improvement_and_passes(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 0.97}
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.IMPROVEMENT
    assert comparison.exit_code == ExitCode.PASS


def test_kernels_of_identical_files_pass_whatever_their_times_and_two_of_them_show_the_noise(bench: Bench, case: Case) -> None:
    bench.worker.factors = {A: 1.055}
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, comparison.exit_code) == (VerdictKind.PASS, ExitCode.PASS)
    assert "identical source files; the measured +5" in found.verdict.reason
    assert bench.workers.processes == 0
    assert {twin.kernel for twin in comparison.twins} == {A, B, f"control ({A})"}
    assert sorted(task.kernel for task in bench.worker.checks) == [A, B], "one side's check says it for both"


def test_which_identical_kernels_are_timed_changes_from_case_to_case(bench: Bench, case: Case) -> None:
    bench.options["kernel"] = "[abs]*"
    other = msgspec.structs.replace(case, name="other", params={"size": 5120})
    comparison = bench.run(case, other)
    first, second = (set(task.kernels) for task in bench.worker.first)
    assert len(first) == len(second) == 2
    assert first | second == {A, B, SPLIT}
    assert {one.verdict.kind for one in comparison.kernels} == {VerdictKind.PASS}


def test_identical_machine_code_of_changed_files_passes_and_is_not_timed(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    bench.worker.same_code = {A: True, B: False}
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, found.same_code, found.finding) == (VerdictKind.PASS, True, None)
    assert found.verdict.reason == "identical machine code"
    assert only(comparison, B).finding is not None


def test_a_finding_no_larger_than_the_noise_of_identical_code_is_undecided(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 1.015, B: 1.035}
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert "identical code of such durations differed by up to 3." in only(comparison).verdict.reason
    assert comparison.exit_code == ExitCode.UNDECIDED


def test_a_finding_of_one_process_that_no_fresh_one_repeats_is_withdrawn(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 1.015}
    bench.worker.fresh_factors = lambda process, arm: 1.0
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.PASS
    assert "not repeated" in only(comparison).verdict.reason


def test_fresh_processes_that_disagree_leave_it_undecided(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 1.015}
    bench.worker.fresh_factors = lambda process, arm: 1.015 if arm == A and process % 2 else 1.0
    comparison = bench.run(case)
    assert (only(comparison).verdict.kind, comparison.exit_code) == (VerdictKind.UNDECIDED, ExitCode.UNDECIDED)


def test_a_fresh_process_that_fails_leaves_the_finding_unconfirmed(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors, bench.worker.fresh_fails = {A: 1.015}, True
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert "not yet confirmed" in only(comparison).verdict.reason
    assert any("a fresh process failed: planted" in warning for warning in comparison.warnings)


def test_times_that_the_memory_contradicts_are_not_judged_and_say_nothing_of_the_noise(bench: Bench, case: Case) -> None:
    """Planted: 20 000 bytes in 20 us, which is 1 GB/s, where the memory moves 0.5."""
    bench.change("a")
    bench.worker.factors, bench.worker.warm = {A: 1.05}, lambda task: True
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, comparison.exit_code) == (VerdictKind.UNDECIDED, ExitCode.UNDECIDED)
    assert found.verdict.reason.startswith("its times are labelled cold, but ")
    assert "GB/s of a copy that no cache holds" in found.verdict.reason
    assert only(comparison, B).verdict.kind is VerdictKind.PASS, "identical files need no times"
    assert (comparison.twins, bench.workers.processes) == ([], 0)
    assert any("scale:even is not judged" in warning for warning in comparison.warnings)


def test_a_kernel_that_became_less_accurate_is_a_regression_also_where_its_times_are_not_judged(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.rms, bench.worker.warm = {A: 1.3e-3}, lambda task: True
    assert only(bench.run(case)).verdict.kind is VerdictKind.REGRESSION


def test_a_fresh_process_that_was_not_cold_confirms_nothing(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors, bench.worker.warm = {A: 1.015}, lambda task: task.looks is None
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert any("a fresh process failed: its times are labelled cold, but" in warning for warning in comparison.warnings)


def test_samples_of_the_processes_that_confirmed_are_kept_and_say_which(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    bench.worker.factors = {A: 1.015}
    found = only(bench.run(case))
    assert found.finding is not None
    by_process = {number: {sample.arm for sample in bench.kept if sample.process == number} for number in range(PROCESSES + 1)}
    assert B in by_process[0]
    assert all(by_process[number] == {"copy", "stream", "control", A, f"{BASE}{A}"} for number in range(1, PROCESSES + 1))
    assert {sample.process for sample in bench.kept} == set(by_process)
    counts = {sum(sample.process == number and sample.arm == A for sample in bench.kept) for number in range(PROCESSES + 1)}
    assert counts == {PLAN.rounds * found.finding.replicates}


@pytest.mark.parametrize("factor", [1.0, 0.9])
def test_a_kernel_that_became_less_accurate_is_a_regression_also_where_it_became_faster(bench: Bench, case: Case, factor: float) -> None:
    bench.change("a")
    bench.worker.factors, bench.worker.rms = {A: factor}, {A: 1.3e-3}
    comparison = bench.run(case)
    assert (only(comparison).verdict.kind, comparison.exit_code) == (VerdictKind.REGRESSION, ExitCode.REGRESSION)
    assert "rms error relative to the split chain's is 1.30 x" in only(comparison).verdict.reason
    assert ("faster by being less accurate" in only(comparison).verdict.reason) == (factor < 1)
    seeds = {task.kernel: task.seed for task in bench.worker.checks}
    assert seeds[A] == seeds[f"{BASE}{A}"] is not None, "both sides are checked on the same inputs"


def test_a_kernel_of_this_side_that_is_wrong_is_an_error_and_is_never_timed(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.failing = {A}
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, found.new_status, found.old_status, found.reason) == (VerdictKind.ERROR, Status.WRONG, None, "off by half")
    assert comparison.exit_code == ExitCode.KERNEL_FAILED
    assert [task.kernels for task in bench.worker.first] == [(B,)]


def test_a_kernel_that_fails_on_the_other_side_only_is_incomparable_and_no_failure(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.failing = {f"{BASE}{A}"}
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.INCOMPARABLE
    assert only(comparison).verdict.reason == "fails on the other side (wrong): off by half"
    assert comparison.exit_code == ExitCode.PASS


@pytest.mark.parametrize(
    ("arm", "kind", "said"),
    [
        (A, VerdictKind.ERROR, "while it was being timed: planted"),
        (f"{BASE}{A}", VerdictKind.INCOMPARABLE, "fails on the other side (crashed): while it was being timed: planted"),
        ("control", VerdictKind.ERROR, "while it was being timed: planted"),
    ],
)
def test_a_kernel_that_fails_while_it_is_timed_is_out_and_the_others_are_compared(
    bench: Bench, case: Case, arm: str, kind: VerdictKind, said: str
) -> None:
    bench.change("a", "b")
    failures = [Failure(status=Status.CRASHED, reason="planted", kernel=arm)]
    bench.worker.before_measuring = lambda task: failures.pop() if failures else None
    comparison = bench.run(case)
    assert (only(comparison).verdict.kind, only(comparison).verdict.reason) == (kind, said)
    assert only(comparison, B).verdict.kind is VerdictKind.PASS
    assert [task.kernels for task in bench.worker.first] == [(A, B), (B,)]


def test_kernels_of_one_side_only_are_listed_and_not_compared(bench: Bench, case: Case) -> None:
    bench.options["kernel"] = None
    bench.write("new", "fresh", "x.mul_(factor)")
    bench.write("old", "gone", "x.mul_(factor)")
    comparison = bench.run(case)
    new, removed = only(comparison, "scale/fresh@1"), only(comparison, "scale/gone@1")
    assert (new.standing, new.verdict.kind) == (Standing.NEW, VerdictKind.INCOMPARABLE)
    assert (removed.standing, removed.verdict.kind) == (Standing.REMOVED, VerdictKind.INCOMPARABLE)
    assert comparison.exit_code == ExitCode.PASS
    assert not {task.kernel for task in bench.worker.checks} & {"scale/fresh@1", "scale/gone@1"}


def test_where_nothing_can_be_compared_the_answer_is_undecided(bench: Bench, case: Case) -> None:
    bench.write("new", "fresh", "x.mul_(factor)")
    bench.options["kernel"] = "fresh"
    assert bench.run(case).exit_code == ExitCode.UNDECIDED


@pytest.mark.parametrize(
    ("found", "replaced", "said"),
    [
        ("float factor=2.0", "float factor=3.0", "the op's schema differs"),
        ("    size: int\n", "    size: int\n    more: int = 1\n", "the op's Params differ in more"),
        ("    size: int\n", "    size: float\n", "the op's Params differ in size"),
        ("self.size <= 0", "self.size > 9", "the other side refuses the case's parameters"),
    ],
)
def test_ops_that_take_other_arguments_are_incomparable(bench: Bench, case: Case, found: str, replaced: str, said: str) -> None:
    file = bench.folder / "old" / "scale" / "op.py"
    assert found in file.read_text()
    file.write_text(file.read_text().replace(found, replaced))
    comparison = bench.run(case)
    assert said in only(comparison).verdict.reason
    assert only(comparison).verdict.kind is VerdictKind.INCOMPARABLE
    assert bench.worker.first == []


def test_a_kernel_that_no_longer_takes_the_case_is_undecided_and_not_passed_over(bench: Bench, case: Case) -> None:
    with (bench.folder / "new" / "scale" / "a.py").open("a") as stream:
        stream.write('\n\n@a.supports\ndef _(params):\n    return "planted"\n')
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert only(comparison).verdict.reason == "does not run here and does on the other side: planted"
    assert comparison.exit_code == ExitCode.UNDECIDED


def test_a_file_that_does_not_load_here_fails_and_on_the_other_side_is_only_said(bench: Bench, case: Case) -> None:
    (bench.folder / "old" / "scale" / "a.py").write_text("def f(:\n")
    comparison = bench.run(case)
    assert comparison.exit_code == ExitCode.PASS
    assert any("not loaded on the other side" in warning for warning in comparison.warnings)
    (bench.folder / "new" / "scale" / "b.py").write_text("def f(:\n")
    assert bench.run(case).exit_code == ExitCode.KERNEL_FAILED


def test_a_case_of_the_same_work_takes_the_results_of_the_first(bench: Bench, case: Case) -> None:
    bench.change("a")
    again = msgspec.structs.replace(case, suite="model", name="again")
    comparison = bench.run(case, again)
    assert len(bench.worker.first) == 1
    verdicts = {one.case_key: one.verdict for one in comparison.kernels if one.kernel == A}
    assert verdicts["model:again"] == verdicts[case.key]
    assert [one.same_as for one in comparison.cases] == ["", case.key]


def test_the_first_stage_is_stricter_where_more_is_compared(bench: Bench, case: Case) -> None:
    assert bench.session()._looks_for([case]).alarm_level == bench.looks.alarm_level
    assert bench.session()._looks_for([case] * 1000).alarm_level < bench.looks.alarm_level


def test_an_interruption_leaves_what_was_compared_marked_incomplete(bench: Bench, case: Case) -> None:
    other = msgspec.structs.replace(case, name="other", params={"size": 5120})

    def interrupt(task: MeasureTask) -> None:
        if task.case.name == "other":
            raise KeyboardInterrupt

    bench.worker.before_measuring = interrupt
    session = bench.session()
    with pytest.raises(KeyboardInterrupt):
        session.run([case, other], FakeWorkers(bench.device, bench.worker))
    record = session.record()
    assert not record.complete
    assert {one.case for one in record.kernels} == {"even"}
    assert session.begun
    assert session.samples
    assert bench.reporter.said[-1] == ("end",)


def test_a_budget_that_ends_leaves_the_rest_undecided(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.options["budget_s"] = 1e-9
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert "the budget of 1e-09 s ended before this case" in only(comparison).verdict.reason
    assert not comparison.complete


def test_a_worker_that_was_given_no_other_side_says_so(worker: WorkerProcess, case: Case) -> None:
    reply = worker.ask(CheckTask(case=case, kernel=f"{BASE}{SPLIT}"))
    assert isinstance(reply, Failure)
    assert f"kernel {BASE}{SPLIT}: this worker was given no folder of the other side" in reply.reason


def test_a_timer_that_lost_records_ends_the_comparison(bench: Bench, case: Case) -> None:
    bench.worker.before_measuring = lambda task: Failure(status=Status.CRASHED, reason="records were dropped", unfit=True)
    with pytest.raises(DeviceUnfitError, match="case scale:even: records were dropped"):
        bench.run(case)


def test_on_a_cpu_only_a_change_of_a_tenth_counts() -> None:
    assert default_looks("cuda") == Plan()
    assert default_looks("cpu").margin == 0.10
