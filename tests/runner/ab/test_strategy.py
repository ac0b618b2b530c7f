"""A whole comparison, from two folders of kernels to its record: what is compared, what is not and why, what an early end leaves."""

from __future__ import annotations

import msgspec
import pytest

from fusebench.report.ab import ab_document, ab_lines
from fusebench.runner.ab.strategy import default_looks
from fusebench.runner.workers.protocol import CompareTask
from fusebench.schema import Case, ExitCode, Status, VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.store.comparison_record import RevisionPresence
from helpers import comparison_bench
from helpers.comparison_bench import SPLIT, A, B, Bench, only

bench = comparison_bench.bench


def test_ten_comparisons_of_equal_kernels_whose_files_differ_raise_no_alarm(bench: Bench, case: Case) -> None:
    bench.change("a", "b")
    codes = [bench.run(case).exit_code for _ in range(10)]
    assert codes == [ExitCode.PASS] * 10


def test_kernels_of_identical_files_pass_whatever_their_times_and_two_of_them_show_the_noise(bench: Bench, case: Case) -> None:
    bench.worker.factors = {A: 1.055}
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, comparison.exit_code) == (VerdictKind.PASS, ExitCode.PASS)
    assert "identical source files; the measured +5" in found.verdict.reason
    assert bench.pool.processes == 0
    assert {pair.kernel for pair in comparison.aa_pairs} == {A, B, f"control ({A})"}
    assert sorted(task.kernel for task in bench.worker.checks) == [A, B], "one side's check says it for both"


def in_head(bench: Bench, file: str, content: str) -> None:
    """Write a file of head's kernels folder alone."""
    path = bench.folder / "new" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


def test_identical_code_that_is_slower_beside_a_changed_data_file_is_undecided_with_the_cause(bench: Bench, case: Case) -> None:
    in_head(bench, "tables/repetitions", "9")
    bench.worker.factors, bench.worker.same_code = {A: 3.28}, {A: True, B: True}
    comparison = bench.run(case)
    found = only(comparison)
    assert (found.verdict.kind, comparison.exit_code) == (VerdictKind.UNDECIDED, ExitCode.UNDECIDED)
    assert found.verdict.reason.startswith("identical machine code, +22")
    assert "the difference lies in a file that the kernel reads (tables/repetitions) or in the measurement" in found.verdict.reason
    assert found.confirmation is not None
    assert (only(comparison, B).verdict.kind, only(comparison, B).finding is None) == (VerdictKind.PASS, False), "timed, and as fast"
    assert {pair.kernel for pair in comparison.aa_pairs} == {f"control ({A})"}, "it may read something else, so it shows no noise"


def test_machine_code_that_became_faster_by_a_data_file_is_undecided_too(bench: Bench, case: Case) -> None:
    in_head(bench, "tables/repetitions", "9")
    bench.worker.factors, bench.worker.same_code = {A: 0.9}, {A: True, B: True}
    assert only(bench.run(case)).verdict.kind is VerdictKind.UNDECIDED


def test_a_data_file_that_changes_the_code_is_judged_by_its_times(bench: Bench, case: Case) -> None:
    in_head(bench, "tables/tiles.json", "{}")
    bench.worker.factors, bench.worker.same_code = {A: 1.015}, {A: False, B: True}
    found = only(bench.run(case))
    assert (found.verdict.kind, found.changed_files) == (VerdictKind.REGRESSION, ("tables/tiles.json",))


def test_identical_files_that_are_slower_are_undecided_where_any_other_file_of_the_folder_differs(bench: Bench, case: Case) -> None:
    """The other file is of Python, and no import leads to it; its kernel is timed as a sample of the noise."""
    in_head(bench, "scale/other.py", "REPETITIONS = 9\n")
    bench.worker.factors = {A: 1.5}
    comparison = bench.run(case)
    assert only(comparison).verdict.reason.startswith("identical source files, +49.97 %")
    assert "the difference lies in another file of the kernels folders or in the measurement" in only(comparison).verdict.reason
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert only(comparison, B).verdict.kind is VerdictKind.PASS


def test_identical_files_that_one_process_alone_finds_slower_pass(bench: Bench, case: Case) -> None:
    in_head(bench, "scale/other.py", "REPETITIONS = 9\n")
    bench.worker.factors, bench.worker.fresh_factors = {A: 1.5}, lambda process, arm: 1.0
    found = only(bench.run(case))
    assert (found.verdict.kind, "not repeated" in found.verdict.reason) == (VerdictKind.PASS, True)


def test_which_identical_kernels_are_timed_changes_from_case_to_case(bench: Bench, case: Case) -> None:
    bench.options["kernel"] = "[abs]*"
    other = msgspec.structs.replace(case, name="other", params={"size": 5120})
    comparison = bench.run(case, other)
    first, second = (set(task.kernels) for task in bench.worker.first)
    assert len(first) == len(second) == 2
    assert first | second == {A, B, SPLIT}
    assert {one.verdict.kind for one in comparison.kernels} == {VerdictKind.PASS}


def test_a_finding_no_larger_than_the_noise_of_identical_code_is_undecided(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors = {A: 1.015, B: 1.035}
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert "identical code of such calls differed by up to 3." in only(comparison).verdict.reason
    assert comparison.exit_code == ExitCode.UNDECIDED


def test_kernels_of_one_side_only_are_listed_and_not_compared(bench: Bench, case: Case) -> None:
    bench.options["kernel"] = None
    bench.write("new", "fresh", "x.mul_(factor)")
    bench.write("old", "gone", "x.mul_(factor)")
    comparison = bench.run(case)
    new, removed = only(comparison, "scale/fresh@1"), only(comparison, "scale/gone@1")
    assert (new.presence, new.verdict.kind) == (RevisionPresence.NEW, VerdictKind.INCOMPARABLE)
    assert (removed.presence, removed.verdict.kind) == (RevisionPresence.REMOVED, VerdictKind.INCOMPARABLE)
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
        ("self.size <= 0", "self.size > 9", "the base revision refuses the case's parameters"),
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
    assert only(comparison).verdict.reason == "does not run here, but does in the base revision: planted"
    assert comparison.exit_code == ExitCode.UNDECIDED


def test_a_file_that_does_not_load_here_fails_and_on_the_other_side_is_only_said(bench: Bench, case: Case) -> None:
    (bench.folder / "old" / "scale" / "a.py").write_text("def f(:\n")
    comparison = bench.run(case)
    assert comparison.exit_code == ExitCode.PASS
    assert any("not loaded in the base revision" in warning for warning in comparison.warnings)
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
    assert planned(bench, [case]).alarm_level == bench.looks.alarm_level
    assert planned(bench, [case] * 1000).alarm_level < bench.looks.alarm_level


def planned(bench: Bench, cases: list[Case]) -> Plan:
    """The sampling plan for so many cases."""
    strategy = bench.engine().strategy
    strategy.plan(cases)
    return strategy.record(complete=False).looks


def test_an_interruption_leaves_what_was_compared_marked_incomplete(bench: Bench, case: Case) -> None:
    other = msgspec.structs.replace(case, name="other", params={"size": 5120})

    def interrupt(task: CompareTask) -> None:
        if task.case.name == "other":
            raise KeyboardInterrupt

    bench.worker.before_measuring = interrupt
    engine = bench.engine()
    with pytest.raises(KeyboardInterrupt):
        engine.run([case, other])
    record = engine.record()
    assert not record.complete
    assert {one.case for one in record.kernels} == {"even"}
    assert engine.begun
    assert engine.samples
    assert bench.reporter.said[-1] == ("end",)


def test_an_interruption_while_a_finding_is_confirmed_leaves_what_was_measured(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.factors, bench.worker.said = {A: 1.015}, {"warm_up": {"seconds": 2.0}}

    def interrupt(process: int) -> None:
        if process == 2:
            raise KeyboardInterrupt

    bench.worker.before_confirming = interrupt
    engine = bench.engine()
    with pytest.raises(KeyboardInterrupt):
        engine.run([case])
    record = engine.record()
    assert (record.kernels, record.complete, record.timer) == ([], False, "scripted")
    assert [one.case.key for one in record.cases] == [case.key]
    assert {pair.kernel for pair in record.aa_pairs} == {B, f"control ({A})"}
    assert record.environment.state["warm_up"] == {case.key: {"seconds": 2.0}}
    assert {sample.process for sample in engine.samples} == {0, 1}


def test_what_the_timer_did_is_kept_in_its_order(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.worker.said = {
        "timer_fallback": "planted",
        "cut_short": True,
        "timer_retries": 3,
        "late_calls": {A: 999, B: 1},
        "repeated_rounds": 7,
    }
    comparison = bench.run(case)
    assert (comparison.timer, comparison.timer_fallback) == ("scripted", "planted")
    assert comparison.warnings[:-1] == [
        "timer scripted instead of the device's default: planted",
        "case scale:even: the budget ended before every pair was decided",
        "case scale:even: the timer failed 3 times, as where records are lost, and the same calls were timed again",
    ]
    assert comparison.warnings[-1].startswith("case scale:even: the device waited for the host inside of 999 of ")
    assert comparison.warnings[-1].endswith(f" calls of {A}: their gaps are the host's too")
    assert [said[1] for said in bench.reporter.said if said[0] == "note"] == comparison.warnings[1:]
    assert comparison.cases[0].repeated_rounds == 7


def test_a_budget_that_ends_leaves_the_rest_undecided(bench: Bench, case: Case) -> None:
    bench.change("a")
    bench.options["budget_s"] = 1e-9
    comparison = bench.run(case)
    assert only(comparison).verdict.kind is VerdictKind.UNDECIDED
    assert "the budget of 1e-09 s ended before this case" in only(comparison).verdict.reason
    assert not comparison.complete


def test_on_a_cpu_only_a_change_of_a_tenth_counts() -> None:
    assert default_looks("cuda") == Plan()
    assert default_looks("cpu").margin == 0.10


def test_a_peer_that_is_not_installed_is_absent_and_counted_nowhere(bench: Bench, case: Case) -> None:
    """Planted defect: without the status, every case of it is a line of its own in logs and comments."""
    for side in ("new", "old"):
        file = bench.folder / side / "scale" / "peer.py"
        bench.write(side, "peer", "x.mul_(factor)")
        text = file.read_text()
        file.write_text(text.replace('role="fused"', 'role="peer", requires=("no_such_module",), install="no-such"'))
        assert file.read_text() != text
    bench.options = {"kernel": "*[ar]@1"}
    comparison = bench.run(case)
    peer = only(comparison, "scale/peer@1")
    assert (peer.absent, peer.new_status, peer.reason) == (True, Status.NOT_RUNNABLE, "not installed: no_such_module (pip install no-such)")
    assert [one.kernel for one in comparison.kernels if not one.absent] == [A]
    assert ("result", "scale/peer@1", Status.NOT_RUNNABLE) in bench.reporter.said, "which logs name in one line"
    assert ab_lines(comparison)[0][0] == "1 pass"
    assert [row["reason"] for row in ab_document(comparison, None)["results"] if row["status"] == "not_runnable"] == [peer.reason]
    told = [line for line, _ in ab_lines(comparison) if "no_such_module" in line]
    assert told == ["not runnable here (1 kernel-case pair): peer@1: not installed: no_such_module (pip install no-such)"]
