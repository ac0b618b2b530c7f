from __future__ import annotations

import io
from types import ModuleType

import pytest
from rich.console import Console

from fusebench.report.comparison import comparison_document, print_comparison, print_judgements
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.baseline.judgement import judge_each
from fusebench.verdict.margins.rule import MarginRule


def test_both_sides_of_a_change_stand_in_one_row(synthetic: ModuleType) -> None:
    old, new = synthetic.make_run(run_id="a"), synthetic.make_run(run_id="b", slow={("flux_1024", synthetic.FUSED): 1.1})
    document = comparison_document(old, new, judge_each(new, old, MarginRule()))
    row = next(row for row in document["rows"] if (row["case"], row["kernel"]) == ("flux_1024", synthetic.FUSED))
    assert (row["old_time_us"], row["new_time_us"], row["change"]) == pytest.approx((28.08, 30.888, 1.1))
    assert (row["verdict"], document["differences"]) == ("regression", [])


def test_differences_between_the_environments_are_named(synthetic: ModuleType) -> None:
    old, new = synthetic.make_run(run_id="a"), synthetic.make_run(run_id="b", timer="cuda_events", environment={"driver": "999"})
    console = Console(file=io.StringIO(), width=200)
    print_comparison(old, new, judge_each(new, old, MarginRule()), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "differs: timer: cupti -> cuda_events" in text
    assert "differs: driver: 580.159 -> 999" in text


def test_a_gate_is_quiet_when_all_is_well_and_precise_when_not(synthetic: ModuleType) -> None:
    def said(**new: object) -> list[str]:
        console = Console(file=io.StringIO(), width=500)
        print_judgements(judge_each(synthetic.make_run(**new), synthetic.make_run(), MarginRule()), console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    assert said() == ["30 kernel-case pairs: 30 pass"]
    lines = said(cases=synthetic.CASES[:4], slow={("flux_1024", synthetic.FUSED): 1.1})
    assert lines[0].startswith("regression  qknorm_rope:flux_1024  qknorm_rope/fused_triton@2")
    assert lines[-1] == "30 kernel-case pairs: 23 pass, 1 regression, 6 incomparable; 6 of the baseline's are missing from the run"


def test_advisory_verdicts_are_counted_apart(synthetic: ModuleType) -> None:
    places = {("flux_1024", f"{synthetic.OP}/compiled@1"): 1.1, ("zimage_1024", f"{synthetic.OP}/compiled@1"): 0.9}
    old, new = synthetic.make_run(), synthetic.make_run(slow={**places, ("flux_1024", synthetic.FUSED): 1.1})
    judgements = judge_each(new, old, MarginRule())
    console = Console(file=io.StringIO(), width=500)
    print_judgements(judgements, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[-1] == (
        "28 kernel-case pairs: 27 pass, 1 regression; advisory, not in the exit status: 1 regression, 1 improvement"
    )
    rows = {(row["case"], row["kernel"]): row["decides"] for row in comparison_document(old, new, judgements)["rows"]}
    assert [rows[place] for place in (*places, ("flux_1024", synthetic.FUSED))] == [False, False, True]


def test_advisory_changes_are_one_line_unless_there_are_few(synthetic: ModuleType) -> None:
    """Planted defect: a nightly that passed told 54 changes of torch.compile's kernels, and one had to count what was its own."""
    slow = {(case, f"{synthetic.OP}/compiled@1"): 1.05 + 0.05 * place for place, case in enumerate(synthetic.CASES)}
    console = Console(file=io.StringIO(), width=500)
    print_judgements(judge_run(synthetic.make_run(slow=slow), synthetic.make_run(), MarginRule()).judgements, console)
    assert isinstance(console.file, io.StringIO)
    aside, counted = console.file.getvalue().splitlines()
    why = "torch.compile chooses its code anew in every process"
    assert aside == f"advisory  5 kernel-case pairs (compiled@1, on 5 cases): 5 regression, +5.0 to +25.0 %; {why}; --json lists each"
    assert counted == "25 kernel-case pairs: 25 pass; advisory, not in the exit status: 5 regression"


def test_new_kernels_and_cases_are_one_line_a_suite_unless_there_are_few(synthetic: ModuleType) -> None:
    def said(**old: object) -> list[str]:
        console = Console(file=io.StringIO(), width=500)
        print_judgements(judge_each(synthetic.make_run(), synthetic.make_run(**old), MarginRule()), console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    lines = said(kernels=[name for name in synthetic.KERNELS if name != synthetic.FUSED])
    assert lines[0] == f"new  qknorm_rope: 5 kernel-case pairs ({synthetic.FUSED}, on 5 cases)  not in the baseline"
    assert lines[1] == "30 kernel-case pairs: 25 pass, 5 new"


def test_what_the_run_no_longer_holds_is_one_line_a_suite(synthetic: ModuleType) -> None:
    """Planted defect: the gate of an interrupted nightly printed 1208 lines, its one change among them."""
    console = Console(file=io.StringIO(), width=500)
    print_judgements(judge_each(synthetic.make_run(cases=["flux_1024"]), synthetic.make_run(), MarginRule()), console)
    assert isinstance(console.file, io.StringIO)
    lost, counted = console.file.getvalue().splitlines()
    gone = "measured in the baseline; this case is not in the run"
    assert lost == f"incomparable  qknorm_rope: 24 kernel-case pairs (6 kernels, on 4 cases)  {gone}"
    assert counted == "30 kernel-case pairs: 6 pass, 24 incomparable; 24 of the baseline's are missing from the run"
