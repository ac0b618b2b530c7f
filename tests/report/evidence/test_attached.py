"""Evidence that verdicts carry: on the terminal, in Markdown, in HTML and in JSON, once for all cases that it is the same on."""

from __future__ import annotations

import io
import json
from types import ModuleType

import msgspec
import pytest
from rich.console import Console

from fusebench.report.evidence.attached import SHOWN_ON_A_TERMINAL, Attached, attached_to, evidence_parts, evidence_row, grouped
from fusebench.report.html.page import html_report
from fusebench.report.run.document import run_document
from fusebench.report.run.markdown import evidence_markdown, markdown_report
from fusebench.report.run.table import print_run
from fusebench.schema import Attachment, Run

STATIC = Attachment(
    kind="static",
    title="static evidence: old → new",
    columns=("figure", "before", "after", ""),
    rows=(("registers", "40", "64", ""), ("global loads", "8x16 B | 1x8 B", "[16]x8 B", "worse")),
    notes=("from a stored file",),
)
MISSING = Attachment(kind="static", title="static evidence", notes=("not collected: no <toolchain>",))


@pytest.fixture
def run(synthetic: ModuleType) -> Run:
    """The fused kernel carries the same evidence on two cases, and another one none but a reason."""
    record = synthetic.make_run(cases=["flux_1024", "zimage_1024"])
    carried = {synthetic.FUSED: (STATIC,), "qknorm_rope/fused_cuda@1": (MISSING,)}
    results = [msgspec.structs.replace(result, attachments=carried.get(result.kernel, ())) for result in record.results]
    return msgspec.structs.replace(record, results=results)


def shown(entries: list[Attached]) -> str:
    console = Console(width=120, record=True, markup=True, force_terminal=False, file=io.StringIO())
    for part in evidence_parts(entries):
        console.print(part)
    return console.export_text()


def test_equal_evidence_of_a_kernel_is_shown_once_with_its_cases(run: Run, synthetic: ModuleType) -> None:
    assert [(one.subject, one.attachment) for one in grouped(attached_to(run))] == [
        (f"{synthetic.FUSED} on qknorm_rope:flux_1024, qknorm_rope:zimage_1024", STATIC),
        ("qknorm_rope/fused_cuda@1 on qknorm_rope:flux_1024, qknorm_rope:zimage_1024", MISSING),
    ]
    (many,) = grouped([("k", f"s:{number}", STATIC) for number in range(6)])
    assert many.subject == "k on s:0, s:1, s:2, s:3 and 2 more"
    assert [one.subject for one in grouped([("k", "s:1", STATIC), ("k", "s:2", MISSING)])] == ["k on s:1", "k on s:2"]


def test_on_a_terminal_a_table_as_it_stands_and_its_notes(run: Run) -> None:
    text = shown(attached_to(run))
    assert "qknorm_rope:zimage_1024: static evidence: old → new" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["registers", "40", "64"] in rows
    assert ["global", "loads", "8x16", "B", "|", "1x8", "B", "[16]x8", "B", "worse"] in rows, "brackets are no markup"
    assert ["from", "a", "stored", "file"] in rows
    assert ["not", "collected:", "no", "<toolchain>"] in rows


def test_a_terminal_gets_the_first_few_and_hears_of_the_rest() -> None:
    text = shown([(f"k{number}", "s:one", STATIC) for number in range(SHOWN_ON_A_TERMINAL + 3)])
    assert text.count("static evidence: old") == SHOWN_ON_A_TERMINAL
    assert "evidence about 3 more is in the report and in --json" in text


def test_markdown_holds_all_of_it_and_a_pipe_breaks_no_table(run: Run) -> None:
    lines = evidence_markdown(attached_to(run))
    assert lines[0] == "## Evidence for the regressions"
    assert "| global loads | 8x16 B \\| 1x8 B | [16]x8 B | worse |" in lines
    assert "* from a stored file" in lines
    assert "* not collected: no &lt;toolchain>" in lines
    assert all(line in markdown_report(run) for line in lines)


def test_the_other_views_of_a_run_hold_it_too(run: Run) -> None:
    console = Console(width=160, record=True, markup=False, force_terminal=False, file=io.StringIO())
    print_run(run, console)
    assert "static evidence: old → new" in console.export_text()
    page = html_report(run)
    assert "<td>8x16 B | 1x8 B</td><td>[16]x8 B</td><td>worse</td>" in page
    assert "not collected: no &lt;toolchain&gt;" in page
    rows = json.loads(json.dumps(run_document(run, None)))["results"]
    assert [row["attachments"][0]["rows"][0] for row in rows if "attachments" in row and row["attachments"][0]["rows"]] == [
        ["registers", "40", "64", ""]
    ] * 2


def test_without_evidence_nothing_is_added(synthetic: ModuleType) -> None:
    plain = synthetic.make_run(cases=["flux_1024"])
    assert (evidence_markdown(attached_to(plain)), evidence_parts(attached_to(plain)), evidence_row(())) == ([], [], {})
    assert "What changed" not in markdown_report(plain) + html_report(plain)
    assert all("attachments" not in row for row in run_document(plain, None)["results"])
