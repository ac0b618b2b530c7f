from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import msgspec
import pytest

from fusebench.report.html.page import html_report
from fusebench.report.run.ci import github_annotations, junit_xml
from fusebench.report.run.document import run_document
from fusebench.report.run.markdown import markdown_report
from fusebench.schema import Estimate, Role, Run, Status, Verdict, VerdictKind


@pytest.fixture
def troubled(synthetic: ModuleType) -> Run:
    """Six kernels on one case: a regression, an undecided one, a crash, a declined one, two passes."""
    status = {
        ("flux_1024", f"{synthetic.OP}/fused_cuda@1"): (Status.CRASHED, "boom <x> & 100%\nsecond\x00 line"),
        ("flux_1024", f"{synthetic.OP}/compiled@1"): (Status.UNSUPPORTED, "declines"),
    }
    run = synthetic.make_run(cases=("flux_1024",), status=status, warnings=["clocks: fell, twice"])
    kinds = {synthetic.FUSED: VerdictKind.REGRESSION, f"{synthetic.OP}/fused_triton@1": VerdictKind.UNDECIDED}
    results = [
        msgspec.structs.replace(result, verdict=Verdict(kind=kinds.get(result.kernel, VerdictKind.PASS), reason="5 % slower"))
        if result.status is Status.MEASURED
        else result
        for result in run.results
    ]
    return msgspec.structs.replace(run, results=results)


def test_the_document_holds_what_the_command_promises(synthetic: ModuleType) -> None:
    document = run_document(synthetic.make_run(), Path("results/runs/x"))
    assert json.loads(msgspec.json.encode(document)) == document
    assert (document["run"], document["device"], document["timer"], document["exit_code"]) == ("results/runs/x", "NVIDIA H200", "cupti", 0)
    assert document["weighted_speedup"]["qknorm_rope"]["best_fused"] == pytest.approx(1.898, abs=0.001)
    promised = {"case", "op", "kernel", "role", "status", "time_us", "ci_us", "speedup", "sol", "accuracy", "verdict", "reason"}
    assert all(promised <= result.keys() for result in document["results"])
    fused = next(result for result in document["results"] if result["kernel"] == synthetic.FUSED)
    assert fused["ci_us"] == pytest.approx([28.08 * math.exp(-0.004), 28.08 * math.exp(0.004)])
    assert fused["accuracy"]["passed"] is True


def test_the_document_has_null_where_there_is_no_number(synthetic: ModuleType) -> None:
    run = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED])
    result = run.results[0]
    timing = msgspec.structs.replace(result.measurement, time_us=Estimate(30.0, 0.0, math.inf), speedup=None, sol=None)
    accuracy = msgspec.structs.replace(result.accuracy, rms_error=math.nan)
    (row,) = run_document(synthetic.change_results(run, measurement=timing, accuracy=accuracy), None)["results"]
    assert (row["time_us"], row["ci_us"], row["speedup"], row["sol"]) == (30.0, [None, None], None, None)
    assert row["accuracy"]["rms_error"] is None
    (bare,) = run_document(synthetic.change_results(run, measurement=None, accuracy=None, status=Status.UNSUPPORTED, reason="no"), None)[
        "results"
    ]
    assert (bare["time_us"], bare["accuracy"], bare["verdict"], bare["reason"]) == (None, None, None, "no")


def test_junit_counts_regressions_crashes_and_what_is_open(troubled: Run) -> None:
    root = ElementTree.fromstring(junit_xml(troubled))
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "1",
        "errors": "1",
        "skipped": "2",
    }
    error = suite.find(".//error")
    assert error is not None
    assert error.get("message", "").startswith("boom <x> & 100%")


def test_annotations_survive_the_characters_that_the_format_reserves(troubled: Run) -> None:
    lines = github_annotations(troubled).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::error", "::error", "::warning", "::notice"]
    crash = next(line for line in lines if "crashed" in line)
    assert "100%25%0Asecond" in crash
    assert "qknorm_rope%3Aflux_1024%3A crashed::boom" in crash
    assert "::5 %25 slower" in next(line for line in lines if "regression" in line)


def test_a_run_where_all_is_well_has_one_notice(synthetic: ModuleType) -> None:
    assert [line.split(" ")[0] for line in github_annotations(synthetic.make_run()).splitlines()] == ["::notice"]


def test_the_page_needs_no_other_file_and_escapes_what_kernels_said(troubled: Run) -> None:
    page = html_report(troubled)
    assert "boom &lt;x&gt; &amp; 100%" in page
    assert re.findall(r"""(?:src|href)="(?!#|data:,)|@import|url\(""", page) == []
    assert "http" not in page
    assert page.count("<script") == 1
    assert page.count('<tr><th scope="row">flux_1024<td class="l">') == 6


@pytest.fixture
def silent(synthetic: ModuleType) -> Run:
    """The speed of a compiled kernel that regressed, and peers of which one is slower in a record that does not say so, one undecided and
    one crashed: nothing here has a say."""
    crashed, slower, open_ = (f"{synthetic.OP}/{name}@1" for name in ("fused_cuda", "fused_triton", "split_torch"))
    run = synthetic.make_run(cases=("flux_1024",), status={("flux_1024", crashed): (Status.CRASHED, "boom")})
    told = {
        f"{synthetic.OP}/compiled@1": Verdict(kind=VerdictKind.REGRESSION, reason="5 % slower; no say: tuned anew", gating=False),
        slower: Verdict(kind=VerdictKind.REGRESSION, reason="6 % slower"),
        open_: Verdict(kind=VerdictKind.UNDECIDED, reason="perhaps slower", gating=False),
        crashed: Verdict(kind=VerdictKind.ERROR, reason="boom; no say: not ours", gating=False),
    }
    results = [
        msgspec.structs.replace(
            one,
            role=one.role if one.role is Role.COMPILED or one.kernel not in told else Role.PEER,
            verdict=told.get(one.kernel, Verdict(kind=VerdictKind.PASS, reason="as before", gating=False)),
        )
        for one in run.results
    ]
    return msgspec.structs.replace(run, results=results)


def test_an_advisory_result_is_no_failure_in_junit(silent: Run) -> None:
    (suite,) = ElementTree.fromstring(junit_xml(silent))
    assert [suite.get(name) for name in ("failures", "errors", "skipped")] == ["0", "0", "4"]
    assert sorted(one.get("message", "") for one in suite.iter("skipped")) == [
        "crashed: boom; no say: not ours",
        "regression: 5 % slower; no say: tuned anew",
        "regression: 6 % slower",
        "undecided: perhaps slower",
    ]


def test_an_advisory_result_is_a_notice_on_github(silent: Run) -> None:
    lines = github_annotations(silent).splitlines()
    assert {line.split(" ")[0] for line in lines} == {"::notice"}
    assert [line.rpartition("::")[2] for line in lines if "slower" in line or "boom" in line] == [
        "perhaps slower",
        "5 %25 slower; no say: tuned anew",
        "6 %25 slower",
        "boom; no say: not ours",
    ]


def test_an_advisory_result_is_marked_in_every_table_and_in_the_document(silent: Run) -> None:
    verdicts = "\n".join(re.findall(r'<td><span class="v.*', html_report(silent)))
    for view in (verdicts, markdown_report(silent)):
        assert view.count("regression, advisory") == 2
        assert (view.count("undecided, advisory"), view.count("error, advisory"), view.count("pass, advisory")) == (1, 1, 0)
    assert "5 % slower; no say: tuned anew" in markdown_report(silent)
    rows = {row["kernel"]: row for row in run_document(silent, None)["results"]}
    assert [rows[f"qknorm_rope/{name}@1"]["decides"] for name in ("compiled", "fused_triton", "fused_cuda")] == [False] * 3
