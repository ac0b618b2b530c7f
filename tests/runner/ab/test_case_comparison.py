"""One case of a comparison: what is called slower or less accurate, what is confirmed, what fails on either side."""

from __future__ import annotations

import msgspec
import pytest

from fusebench.errors import DeviceUnfitError
from fusebench.runner.context import START
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import BASE, CheckTask, CompareTask, ConfirmTask, Failure
from fusebench.schema import Case, ExitCode, Status, VerdictKind
from fusebench.verdict.conclusion import PROCESSES
from helpers import comparison_bench
from helpers.comparison_bench import PLAN, SPLIT, A, B, Bench, only

bench = comparison_bench.bench


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
    assert bench.pool.processes == PROCESSES
    assert {task.kernels for task in bench.worker.fresh} == {(A,)}, "what looks unchanged is not measured again"
    assert len({task.seed for task in bench.worker.fresh}) == PROCESSES


def test_the_same_fresh_processes_confirm_the_findings_of_every_case(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 1.015}
    comparison = bench.run(case, msgspec.structs.replace(case, name="odd", params={"size": 4097}))
    assert [one.verdict.kind for one in comparison.kernels if one.kernel == A] == [VerdictKind.REGRESSION] * 2
    assert bench.pool.processes == PROCESSES, "started once"
    assert [task.case.name for task in bench.worker.fresh] == ["even"] * PROCESSES + ["odd"] * PROCESSES
    assert START in comparison.spending.phases_s


def test_a_faster_kernel_is_an_improvement_and_passes(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 0.97}
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.IMPROVEMENT
    assert comparison.exit_code == ExitCode.PASS


def test_identical_machine_code_of_changed_files_passes_and_is_not_timed(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    bench.worker.same_code = {A: True, B: False}
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, found.same_code, found.finding) == (VerdictKind.PASS, True, None)
    assert found.verdict.reason == "identical machine code"
    assert only(comparison, B).finding is not None


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
    assert "GB/s of a stream that no cache holds" in found.verdict.reason
    assert only(comparison, B).verdict.kind is VerdictKind.PASS, "identical files need no times"
    assert (comparison.aa_pairs, bench.pool.processes) == ([], 0)
    assert any("scale:even is not judged" in warning for warning in comparison.warnings)


def test_a_kernel_that_became_less_accurate_is_a_regression_also_where_its_times_are_not_judged(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.rms, bench.worker.warm = {A: 1.3e-3}, lambda task: True
    assert only(bench.run(case)).verdict.kind is VerdictKind.REGRESSION


def test_a_fresh_process_that_was_not_cold_confirms_nothing(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors, bench.worker.warm = {A: 1.015}, lambda task: isinstance(task, ConfirmTask)
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
    assert seeds[A] == seeds[f"{BASE}{A}"] is not None, "both revisions are checked on the same inputs"


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
    assert only(comparison).verdict.reason == "fails in the base revision (wrong): off by half"
    assert comparison.exit_code == ExitCode.PASS


@pytest.mark.parametrize(
    ("arm", "kind", "said"),
    [
        (A, VerdictKind.ERROR, "while it was being timed: planted"),
        (f"{BASE}{A}", VerdictKind.INCOMPARABLE, "fails in the base revision (crashed): while it was being timed: planted"),
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


def test_a_failure_that_no_compared_kernel_is_to_blame_for_fails_all_of_the_case(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    bench.worker.before_measuring = lambda task: Failure(status=Status.CRASHED, reason="planted", kernel="copy")
    comparison = bench.run(case)
    assert {(one.new_status, one.reason) for one in comparison.kernels} == {(Status.CRASHED, "while copy was being timed: planted")}
    assert comparison.exit_code == ExitCode.KERNEL_FAILED
    assert len(bench.worker.first) == 1


def test_a_worker_that_was_given_no_other_side_says_so(worker: WorkerProcess, case: Case) -> None:
    reply = worker.ask(CheckTask(case=case, kernel=f"{BASE}{SPLIT}"))
    assert isinstance(reply, Failure)
    assert f"kernel {BASE}{SPLIT}: this worker was given no folder of the base revision" in reply.reason


def test_a_timer_that_lost_records_ends_the_comparison(bench: Bench, case: Case) -> None:
    bench.worker.before_measuring = lambda task: Failure(status=Status.CRASHED, reason="records were dropped", unfit=True)
    with pytest.raises(DeviceUnfitError, match="case scale:even: records were dropped"):
        bench.run(case)


@pytest.mark.parametrize(("arm", "kind"), [(A, VerdictKind.ERROR), (f"{BASE}{A}", VerdictKind.INCOMPARABLE)])
def test_a_kernel_whose_timed_outputs_are_wrong_is_out_and_the_others_are_judged(
    bench: Bench, case: Case, arm: str, kind: VerdictKind
) -> None:
    bench.change("a", "b")

    def say(task: CompareTask) -> None:
        bench.worker.said = {"wrong": {arm: "wrong when timed: planted"}} if A in task.kernels else {}

    bench.worker.before_measuring = say
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is kind
    assert "wrong when timed: planted" in only(comparison).verdict.reason
    assert (only(comparison).new_us, only(comparison, B).verdict.kind) == (None, VerdictKind.PASS)


def test_a_suspicious_time_is_not_judged_and_the_other_pairs_are(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    bench.worker.factors, bench.worker.said = {A: 0.5}, {"suspicious": {A: "planted"}}
    comparison = bench.run(case)
    assert (only(comparison).verdict.kind, comparison.exit_code) == (VerdictKind.UNDECIDED, ExitCode.UNDECIDED)
    assert only(comparison).verdict.reason == f"the time of {A} is suspicious: planted"
    assert only(comparison, B).verdict.kind is VerdictKind.PASS
