"""A planted peer that computes a part of its op, and is ten times faster than all others: no view counts it as faster."""

from __future__ import annotations

import io
import json
import re
from types import ModuleType
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from fusebench.report.html.page import html_report
from fusebench.report.plots.speedup import speedup_png
from fusebench.report.run.ci import github_annotations, junit_xml
from fusebench.report.run.document import run_document
from fusebench.report.run.markdown import markdown_report
from fusebench.report.run.savings import saving_lines, weighted_lines
from fusebench.report.run.table import print_run
from fusebench.schema import Measurement, Result, Role, Run
from fusebench.stats.weighted import best_fused, suite_summaries

PART = "qknorm_rope/peer_library@1"
COVERS = "norm only: no rotation"


def planted(run: Run, model: str) -> Run:
    """`run` with results of the peer, made of those of the kernel `model`."""
    results = list(run.results)
    for result in run.results:
        if result.kernel == model and result.measurement is not None:
            time_us = msgspec.structs.replace(result.measurement.time_us, value=1.5, low=1.4, high=1.6)
            timing: Measurement = msgspec.structs.replace(result.measurement, time_us=time_us, speedup=None, sol=None)
            part: Result = msgspec.structs.replace(
                result, kernel=PART, role=Role.PEER, measurement=timing, verdict=None, covers=COVERS
            )  # fmt: skip
            results.append(part)
    return msgspec.structs.replace(run, results=results, suites=suite_summaries(run.cases, results))


@pytest.fixture
def run(synthetic: ModuleType) -> Run:
    return planted(synthetic.make_run(), synthetic.FUSED)


def table_of(run: Run, width: int = 220) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_run(run, console)
    return console.export_text()


def test_sums_are_those_of_a_run_without_it(run: Run, synthetic: ModuleType) -> None:
    without = synthetic.make_run()
    assert run.suites == without.suites
    assert weighted_lines(run) == weighted_lines(without)
    assert saving_lines(run) == saving_lines(without)
    assert "peer_library@1" not in run.suites[0].weighted_speedup


def test_it_is_never_the_best_fused(run: Run) -> None:
    results = [result for result in run.results if result.case == "flux_1024"]
    as_fused = [msgspec.structs.replace(result, role=Role.FUSED) for result in results]
    assert best_fused(as_fused) is not None
    assert best_fused(as_fused).kernel != PART  # type: ignore[union-attr]


def test_the_document_names_the_part_and_has_null_for_what_compares(run: Run) -> None:
    document = run_document(run, None)
    rows = [row for row in document["results"] if row["kernel"] == PART]
    assert len(rows) == 5
    for row in rows:
        assert (row["time_us"], row["covers"], row["reason"]) == (1.5, COVERS, f"covers: {COVERS}")
        assert [row[key] for key in ("speedup", "speedup_ci", "sol", "verdict")] == [None] * 4
    assert {row["covers"] for row in document["results"] if row["kernel"] != PART} == {None}
    assert json.loads(json.dumps(document)) == document


def test_the_table_shows_its_time_and_part_below_whole_kernels(run: Run) -> None:
    text = table_of(run)
    rows = [line for line in text.splitlines() if "peer_library@1" in line]
    assert "1.50 ± 0.10" in rows[0]
    assert not re.search(r"\d\.\d\dx \[", rows[0]), "no speedup"
    assert "measured, a part" in rows[0]
    assert f"{PART} covers {COVERS}; its time is that part's and is compared with no other kernel's" in text
    first_case = text[text.index("flux_1024") : text.index("qwen_image_1024")]
    assert first_case.rindex("split_torch@1") < first_case.index("peer_library@1"), "the slowest whole kernel comes first"


def test_a_narrow_table_keeps_the_columns_it_had(run: Run, synthetic: ModuleType) -> None:
    assert table_of(run, 110).splitlines()[1].split() == table_of(synthetic.make_run(), 110).splitlines()[1].split()


def test_markdown_takes_it_for_no_cases_best(run: Run, synthetic: ModuleType) -> None:
    text = markdown_report(run)
    suite = text[text.index("## qknorm_rope") : text.index("## Kernels that cover a part of their op")]
    assert "peer_library" not in suite
    assert f"* {PART} covers {COVERS}; its time is that part's" in text
    everything = next(line for line in text.splitlines() if line.startswith("| flux_1024 | `peer_library@1`"))
    cells = [cell.strip() for cell in everything.strip("|").split("|")]
    assert (cells[2], cells[3], cells[4], cells[5]) == ("peer", "1.50 ± 0.10", "–", "–")
    assert cells[-1] == f"measured; covers: {COVERS}"
    without_fused = planted(synthetic.make_run(kernels=[synthetic.BASELINE, f"{synthetic.OP}/compiled@1"]), f"{synthetic.OP}/compiled@1")
    best_other = next(line for line in markdown_report(without_fused).splitlines() if line.startswith("| flux_1024 |"))
    assert "`compiled@1`" in best_other, "the fastest besides the baseline is a whole kernel"


def test_html_github_and_junit_name_the_part(run: Run) -> None:
    assert f"{PART} covers {COVERS}" in html_report(run)
    notices = [line for line in github_annotations(run).splitlines() if "peer_library" in line]
    assert len(notices) == 1
    assert notices[0].startswith("::notice title=fusebench%3A part of an op::")
    outputs = [
        case.findtext("system-out") or ""
        for case in ElementTree.fromstring(junit_xml(run)).iter("testcase")
        if case.get("name") == "peer_library@1"
    ]
    assert outputs == [f"1.50 ± 0.10 us (covers: {COVERS})"] * 5


def test_the_picture_is_that_of_a_run_without_it(run: Run, synthetic: ModuleType) -> None:
    assert speedup_png(run) == speedup_png(synthetic.make_run())
