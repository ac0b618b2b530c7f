from __future__ import annotations

import io
from types import ModuleType

import msgspec
import pytest
from rich.console import Console

from fusebench.report.html.page import html_report
from fusebench.report.run.markdown import markdown_report
from fusebench.report.run.summary import warnings_told
from fusebench.report.run.table import print_run
from fusebench.schema import Run, Status, Verdict, VerdictKind


def printed(run: Run, width: int = 300) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    print_run(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_kernel_of_every_case_has_a_row(synthetic: ModuleType) -> None:
    text = printed(synthetic.make_run())
    lines = text.splitlines()
    for case in synthetic.CASES:
        start = next(index for index, line in enumerate(lines) if line.startswith(case))
        block = "\n".join(lines[start + 1 : start + 7])
        assert all(kernel.split("/")[1] in block for kernel in synthetic.KERNELS), case
        assert block.splitlines()[0].split()[0] == "split_triton@1", "the baseline comes first"
    assert "28.08 ± 0.11" in text
    assert "1.90x [1.89, 1.91]" in text
    assert "92.6 %" in text
    assert "weighted speedup of qknorm_rope: best fused 1.898x" in text
    assert "NVIDIA H200 · cupti timer · cold cache" in text


def test_columns_give_way_on_a_narrow_terminal_but_the_figures_stay(synthetic: ModuleType) -> None:
    wide, narrow = printed(synthetic.make_run()), printed(synthetic.make_run(), width=100)
    assert "extra mem" in wide
    assert "extra mem" not in narrow
    row = next(line for line in narrow.splitlines() if line.lstrip().startswith("fused_triton@2"))
    assert len(row) <= 100
    assert " 28.08 ± 0.11 " in row
    assert "  1.90x [1.89, 1.91]  92.6 %  " in row
    assert row.endswith("measured")


def test_what_was_not_timed_is_listed_with_its_reason(synthetic: ModuleType) -> None:
    everywhere = {(case, f"{synthetic.OP}/fused_cuda@1"): (Status.NOT_RUNNABLE, "needs cuda.core") for case in synthetic.CASES}
    crashed = {("flux_1024", synthetic.FUSED): (Status.CRASHED, "Traceback:\n  line\nRuntimeError: boom")}
    text = printed(synthetic.make_run(status=everywhere | crashed))
    assert text.count("fused_cuda@1") == 1, "what cannot run here is one line, not a row per case"
    assert "not runnable here (5 kernel-case pairs): fused_cuda@1: needs cuda.core" in text
    assert "qknorm_rope/fused_triton@2 on flux_1024: crashed: Traceback: line RuntimeError: boom" in text
    assert "fused_triton@2 1.898x (4 of 5 cases)" in text


@pytest.mark.parametrize("reason", ["output q is 1, not 2", "wrong: output q is 1, not 2"])
def test_a_failed_kernel_with_a_verdict_is_told_once(synthetic: ModuleType, reason: str) -> None:
    """Planted defect: its reason stood there as `wrong: …`, and as `error: …` from the verdict."""
    run = synthetic.make_run(cases=("flux_1024",), status={("flux_1024", synthetic.FUSED): (Status.WRONG, "output q is 1, not 2")})
    results = [
        msgspec.structs.replace(one, verdict=Verdict(kind=VerdictKind.ERROR, reason=reason)) if one.kernel == synthetic.FUSED else one
        for one in run.results
    ]
    text = printed(msgspec.structs.replace(run, results=results))
    assert text.count("output q is 1") == 1
    assert "qknorm_rope/fused_triton@2 on flux_1024: wrong: output q is 1, not 2" in text


def test_what_the_reader_must_know_of_the_run_is_said(synthetic: ModuleType) -> None:
    run = synthetic.make_run(warnings=["clocks fell"], complete=False, timer_fallback="CUPTI is taken by another profiler")
    text = printed(run)
    assert "warning: clocks fell" in text
    assert "incomplete" in text
    assert "timer fallback: CUPTI is taken" in text


def test_a_suspicious_time_is_told_with_its_evidence_in_every_report(synthetic: ModuleType) -> None:
    run = synthetic.make_run(cases=("flux_1024",))
    first = msgspec.structs.replace(run.results[1], suspicious="it left work behind")
    run = msgspec.structs.replace(run, results=[run.results[0], first, *run.results[2:]])
    for text in (printed(run), markdown_report(run), html_report(run)):
        assert "it left work behind" in text
    assert "it left work behind" not in printed(synthetic.make_run(cases=("flux_1024",)))


@pytest.mark.parametrize("kind", [VerdictKind.REGRESSION, VerdictKind.UNDECIDED])
def test_verdicts_that_need_attention_come_with_their_reason(synthetic: ModuleType, kind: VerdictKind) -> None:
    run = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED])
    text = printed(synthetic.change_results(run, verdict=Verdict(kind=kind, reason="because")))
    assert f"qknorm_rope/fused_triton@2 on flux_1024: {kind}: because" in text


def test_one_replicate_shows_no_interval(synthetic: ModuleType) -> None:
    run = synthetic.make_run(cases=("flux_1024",))
    none = [
        msgspec.structs.replace(
            result,
            measurement=msgspec.structs.replace(
                result.measurement, time_us=msgspec.structs.replace(result.measurement.time_us, low=0.0, high=float("inf"))
            ),
        )
        for result in run.results
    ]
    assert "28.08 ± ?" in printed(msgspec.structs.replace(run, results=none))


def test_a_run_without_results_prints(synthetic: ModuleType) -> None:
    assert "NVIDIA H200" in printed(synthetic.make_run(cases=()))


def test_many_suspects_that_were_remeasured_are_one_line(synthetic: ModuleType) -> None:
    """Planted defect: a nightly repeated 107 lines of suspects at its end."""
    run = synthetic.make_run()

    def told(count: int) -> list[str]:
        names = synthetic.CASES[:count]
        processes = {name: 8 if name == names[-1] else 2 for name in names}
        results = [
            msgspec.structs.replace(one, measurement=msgspec.structs.replace(one.measurement, looks=4, processes=processes[one.case]))
            if one.case in names and one.kernel == synthetic.FUSED
            else one
            for one in run.results
        ]
        cases = [msgspec.structs.replace(one, suspicion="+2.0 % (undecided)") if one.case.name in names else one for one in run.cases]
        return warnings_told(msgspec.structs.replace(run, cases=cases, results=results, warnings=["clocks were low"]))

    named = ", ".join(f"qknorm_rope:{name}" for name in synthetic.CASES[:3])
    said = f"5 cases were suspects, remeasured in 2 to 8 fresh processes each: {named}, …; the record lists each"
    assert told(5) == ["clocks were low", said]
    alone = f"case qknorm_rope:{synthetic.CASES[0]}: a suspect, remeasured in 8 fresh processes: +2.0 % (undecided)"
    assert told(1) == ["clocks were low", alone], "few are told one by one"
