"""Microseconds saved per denoise step: shown where weights are call counts, with what they cover, the same in every report."""

from __future__ import annotations

import io
from types import ModuleType

import msgspec
import pytest
from rich.console import Console

from fusebench.report.html.page import html_report
from fusebench.report.run.document import run_document
from fusebench.report.run.markdown import markdown_report
from fusebench.report.run.savings import SAVING_HEADER, saving_lines, saving_rows, savings
from fusebench.report.run.table import print_run
from fusebench.schema import Run, Status
from fusebench.stats.weighted import suite_summaries

# Baseline 2.05 and best fused 1.08 times copies of 26, 28, … us, weights 1 to 5.
COPIES = sum(weight * (24 + 2 * weight) for weight in range(1, 6))
SAVED, BASELINE = (2.05 - 1.08) * COPIES, 2.05 * COPIES


def declined(synthetic: ModuleType) -> Run:
    lost = {("batch2_medium", kernel): (Status.UNSUPPORTED, "declines") for kernel in synthetic.KERNELS if "fused" in kernel}
    return synthetic.make_run(status=lost)


def unweighted(run: Run) -> Run:
    cases = [msgspec.structs.replace(summary, case=msgspec.structs.replace(summary.case, weight=1.0)) for summary in run.cases]
    return msgspec.structs.replace(run, cases=cases, suites=suite_summaries(cases, run.results))


def test_the_sentence_gives_what_is_saved_of_what(synthetic: ModuleType) -> None:
    (line,) = saving_lines(synthetic.make_run())
    assert f"saves {SAVED:.1f} us of the baseline's {BASELINE:.1f} us" in line
    assert line.endswith("with the best fused kernels (all 5 cases of the run)")


def test_what_is_not_covered_is_said_in_cases_and_in_launches(synthetic: ModuleType) -> None:
    (line,) = saving_lines(declined(synthetic))
    assert line.endswith("(4 of the run's 5 cases, 66.7 % of their launches)")
    (row,) = saving_rows(declined(synthetic))
    cells = dict(zip(SAVING_HEADER, row, strict=True))
    assert (cells["cases covered"], cells["launches covered"]) == ("4 of 5", "66.7 %")
    assert cells["compiled saves us"].endswith("*"), "it covers the fifth case too"


def test_every_report_has_it(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    console = Console(file=io.StringIO(), width=300)
    print_run(run, console)
    assert isinstance(console.file, io.StringIO)
    assert saving_lines(run)[0] in console.file.getvalue()
    markdown = markdown_report(run)
    assert "## Microseconds saved per denoise step" in markdown
    assert "| " + " | ".join(saving_rows(run)[0]) + " |" in markdown
    assert f"<td>{SAVED:.1f}</td>" in html_report(run)
    (suite,) = run_document(run, None)["suites"]
    assert (suite["name"], suite["cases"], suite["covered_cases"]["best_fused"]) == ("qknorm_rope", 5, 5)
    assert suite["saved_us_per_step"]["best_fused"] == pytest.approx(SAVED)
    assert suite["baseline_us_per_step"]["best_fused"] == pytest.approx(BASELINE)
    assert suite["covered_weight"] == dict.fromkeys(suite["covered_weight"], 1.0)


def test_a_suite_without_call_counts_has_no_sum_in_words(synthetic: ModuleType) -> None:
    run = unweighted(synthetic.make_run())
    assert savings(run) == []
    assert "denoise step" not in markdown_report(run)


def test_a_fused_kernel_slower_than_the_baseline_costs_time(synthetic: ModuleType) -> None:
    fused = [kernel for kernel in synthetic.KERNELS if "fused" in kernel]
    run = synthetic.make_run(slow={(case, kernel): 4.0 for case in synthetic.CASES for kernel in fused})
    (row,) = saving_rows(run)
    assert row[3].startswith("-")
    assert row[4].startswith("-")
    assert "saves -" in saving_lines(run)[0]


def test_an_older_record_has_no_sums_and_still_reads(synthetic: ModuleType) -> None:
    old = msgspec.to_builtins(synthetic.make_run())
    for suite in old["suites"]:
        for key in ("covered_weight", "baseline_us_per_step", "saved_us_per_step"):
            del suite[key]
    run = msgspec.convert(old, Run)
    assert savings(run) == []
    assert "Weighted speedup" in markdown_report(run)
