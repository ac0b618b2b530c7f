from __future__ import annotations

import re
from types import ModuleType

import msgspec
import pytest

from fusebench.report.run.markdown import markdown_report, markdown_table
from fusebench.report.wording import verdict_notes
from fusebench.schema import Estimate, Floor, Role, Status
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.margins.rule import MarginRule


def test_the_shape_that_kernel_pull_requests_use(synthetic: ModuleType) -> None:
    text = markdown_report(synthetic.make_run())
    assert text.startswith("# NVIDIA H200 · cupti timer · cold cache\n")
    row = "| flux_1024 | 4096x24x128 bf16 | 26.00, 28.00 | 53.30 ± 0.21 | "
    row += "28.08 ± 0.11 | `fused_triton@2` | 1.90x [1.89, 1.91] | 92.6 % | 3586 |"
    assert row in text
    assert "| torch, triton | 2.11.0, 3.6.0 |" in text
    assert "**Weighted speedup of qknorm_rope: best fused 1.898x" in text
    assert "![Speedup and share of the speed of light](speedup.png)" in text
    assert "```\nfusebench run --suite qknorm_rope\n```" in text
    assert "12 replicates x 40 rounds" in text


def test_the_assembler_stands_beside_triton_where_it_is_known(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    known = msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, ptxas="12.8.93"))
    assert "| torch, triton | 2.11.0, 3.6.0 (ptxas 12.8.93) |" in markdown_report(known)
    both = msgspec.structs.replace(run, environment=msgspec.structs.replace(known.environment, ptxas_blackwell="12.9.86"))
    assert "| torch, triton | 2.11.0, 3.6.0 (ptxas 12.8.93, ptxas-blackwell 12.9.86) |" in markdown_report(both)


@pytest.mark.parametrize(
    ("counts", "said", "units"),
    [
        ((1,), "", "replicates"),
        ((4,), " in each of 4 processes", "processes"),
        ((8, 4, 12), " in each of 4 to 12 processes", "processes"),
        ((1, 8), " in each of 1 to 8 processes", "processes, or one's replicates"),
    ],
)
def test_cases_measured_in_several_processes_are_said_to_be(synthetic: ModuleType, counts: tuple[int, ...], said: str, units: str) -> None:
    run = synthetic.make_run()
    results = [
        msgspec.structs.replace(result, measurement=msgspec.structs.replace(result.measurement, processes=counts[place % len(counts)]))
        for place, result in enumerate(run.results)
    ]
    text = markdown_report(msgspec.structs.replace(run, results=results))
    assert re.search(rf"12 replicates x 40 rounds{said}, 10 % trimmed means, Student t interval over the {units}(?!,| or)", text)


def test_every_table_is_rectangular_and_every_kernel_is_in_the_full_one(synthetic: ModuleType) -> None:
    text = markdown_report(synthetic.make_run())
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    full = text[text.index("<details>") : text.index("</details>")]
    assert len(re.findall(r"^\| (?:flux|qwen|zimage|batch2)", full, re.M)) == 30


def test_a_pipe_or_a_line_break_in_a_reason_does_not_break_a_table() -> None:
    assert markdown_table(("a", "b"), [("x|y", "two\nlines")])[2] == "| x\\|y | two lines |"


def test_cases_declined_for_reasons_that_differ_in_numbers_alone_are_one_line(synthetic: ModuleType) -> None:
    """Planted defect: a nightly listed 50 lines of kernels for few rows, one for each number of rows that is too many."""
    reasons = (
        "float32 of 513 rows: at most 512",
        "float32 of 8308 rows: at most 512",
        "float32 of 9 rows: at most 512",
        "x 1e-07",
        "x 1e-07",
    )
    kernel = f"{synthetic.OP}/fused_cuda@1"
    status = {(case, kernel): (Status.UNSUPPORTED, reason) for case, reason in zip(synthetic.CASES, reasons, strict=True)}
    text = markdown_report(synthetic.make_run(status=status))
    lines = re.findall(r"^\* `(\S+)` on (.*): unsupported: (.*)$", text, re.M)
    assert lines == [
        (kernel, ", ".join(synthetic.CASES[:3]), "float32 of 9 to 8308 rows: at most 512"),
        (kernel, ", ".join(synthetic.CASES[3:]), "x 1e-07"),
    ]


@pytest.mark.parametrize("compiled", [3, 5])
def test_advisory_verdicts_of_one_cause_are_counted_unless_there_are_few(synthetic: ModuleType, compiled: int) -> None:
    base, slow = synthetic.make_run(), {(case, f"{synthetic.OP}/compiled@1"): 1.1 for case in synthetic.CASES[:compiled]}
    run = synthetic.make_run(slow=slow)
    judged = judge_run(run, base, MarginRule()).verdicts
    results = [msgspec.structs.replace(one, verdict=verdict) for one, verdict in zip(run.results, judged, strict=True)]
    notes = [note for _, note in verdict_notes(msgspec.structs.replace(run, results=results))]
    why = "torch.compile chooses its code anew in every process"
    if compiled == 3:
        assert all(note.endswith(f"; advisory: {why}") for note in notes)
    else:
        assert notes == [f"advisory: 5 regression of compiled@1: {why}"]


def test_failed_and_declined_kernels_are_listed_failures_first(synthetic: ModuleType) -> None:
    status = {
        ("flux_1024", f"{synthetic.OP}/fused_cuda@1"): (Status.UNSUPPORTED, "head_dim 80"),
        ("flux_1024", synthetic.FUSED): (Status.WRONG, "rms error 3x split"),
    }
    text = markdown_report(synthetic.make_run(status=status))
    section = text[text.index("## Kernels without a time") : text.index("<details>")]
    assert section.index("wrong: rms error 3x split") < section.index("unsupported: head_dim 80")


def test_without_fused_kernels_the_best_other_is_shown_as_that(synthetic: ModuleType) -> None:
    kernels = [synthetic.BASELINE, f"{synthetic.OP}/compiled@1"]
    run = synthetic.make_run(kernels=kernels)
    assert Role.FUSED not in {result.role for result in run.results}
    text = markdown_report(run)
    assert "best other us" in text
    assert "`compiled@1` | 1.28x" in text
    assert "no fused kernel was timed" in text


def test_fallback_warnings_and_incompleteness_stand_at_the_top(synthetic: ModuleType) -> None:
    run = synthetic.make_run(warnings=["clocks fell"], complete=False, timer_fallback="no CUPTI", environment={"git_dirty": True})
    head = markdown_report(run).split("| environment |")[0]
    assert "Incomplete run" in head
    assert "Timer fallback: no CUPTI" in head
    assert "clocks fell" in head
    assert "0123456789ab with uncommitted changes" in markdown_report(run)


def test_a_run_that_only_checked_has_no_plot(synthetic: ModuleType) -> None:
    checked = {(case, kernel): (Status.CHECKED, "") for case in synthetic.CASES for kernel in synthetic.KERNELS}
    text = markdown_report(synthetic.make_run(status=checked))
    assert "speedup.png" not in text
    assert "## Kernels without a time" not in text
    assert "| flux_1024 | `fused_triton@2` | fused | – |" in text


def test_a_record_with_limits_shows_them_and_the_share_of_the_memorys_peak_where_it_is_known(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    floor = Floor(launch_us=0.6, latency_us=0.4, gb_per_s=4300.0, time_us=3.0)
    timed = [
        msgspec.structs.replace(one, stream_shape="planted", stream_us=Estimate(4.0 if at else 30.0, 1.0, 99.0), floor=floor)
        for at, one in enumerate(run.cases)
    ]
    shares = [
        msgspec.structs.replace(one, measurement=one.measurement and msgspec.structs.replace(one.measurement, peak_share=0.881))
        for one in run.results
    ]
    environment = msgspec.structs.replace(run.environment, memory_gb_per_s=4814.304)
    text = markdown_report(msgspec.structs.replace(run, cases=timed, results=shares, environment=environment))
    assert "| limit us | split us |" in text
    assert "| SOL | of peak | GB/s |" in text
    assert "| 30.00 | 53.30" in text
    assert "| 3.00 (floor) |" in text
    assert "| 88.1 % |" in text
    assert "below 10 us the floor" in text
    assert "peak (4814 GB/s: highest memory clock x bus width x 2, from NVML)" in text
    assert "of peak" not in markdown_report(msgspec.structs.replace(run, cases=timed)), "no column without a figure"
